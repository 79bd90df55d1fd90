"""Our own distance layers are read by our own audit: units are distances, without hyperplanes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mahalens
from mahalens.nn import Abs, DistanceHead, Mahalanobis, Norm, OffsetL2, PointSlope
from mahalens.report.audit_folder import write_audit

LABELS = torch.arange(120) % 3


def inputs(width=5):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(120, width, generator=draw) + LABELS[:, None]


def layers():
    torch.manual_seed(0)
    return {
        "OffsetL2": OffsetL2(5, 7),
        "published": OffsetL2(5, 7, variant="published-code"),
        "Mahalanobis": Mahalanobis(5, 4, 2),
        "shared": Mahalanobis(5, 4, 2, shared=True, remainder="diagonal"),
        "DistanceHead": DistanceHead(5, 3),
        "density": DistanceHead(5, 3, metric="low-rank", rank=2, logits="density"),
    }


@pytest.mark.parametrize("name", layers())
@pytest.mark.parametrize("inside", [False, True])
def test_distances_are_read(name, inside):
    layer, x = layers()[name], inputs()
    measured = layer.distances if isinstance(layer, DistanceHead) else layer
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), layer) if inside else layer
    record = mahalens.audit(model, (x, LABELS), batch_size=50, perturb=layer(x).shape[1] == 3)
    found = record.layers[-1]
    distances = measured(model[:2](x) if inside else x).detach().double()
    assert (found.name, found.kind) == ("2" if inside else found.kind, type(layer).__name__)
    assert (found.units_count, found.inputs) == (distances.shape[1], 5)
    assert (found.activation, found.folded, found.feeds) == ("none", None, None)
    assert found.hyperplanes is None
    assert found.pairs is None
    assert record.skipped == ()
    torch.testing.assert_close(found.units.mean, distances.mean(0), rtol=1e-4, atol=1e-5)
    near = found.prototypes
    for unit in range(found.units_count):
        order = distances[:, unit].argsort()
        assert near.near_sample[unit].tolist() == order[:8].tolist()
        wanted = distances[order[:8], unit]
        torch.testing.assert_close(near.near_distance[unit], wanted, rtol=1e-4, atol=1e-5)
    if inside:
        before = record.layers[0]
        assert (before.activation, before.feeds) == ("relu", None)


def test_points_and_slopes_are_linear_layers():
    torch.manual_seed(0)
    model, x = nn.Sequential(PointSlope(5, 6), nn.ReLU(), nn.Linear(6, 3)), inputs()
    record = mahalens.audit(model, (x, LABELS))
    layer = record.layers[0]
    assert (layer.kind, layer.activation, layer.feeds) == ("PointSlope", "relu", "2")
    assert record.skipped == ()
    z = model[0](x).detach().double()
    torch.testing.assert_close(layer.units.mean, z.mean(0), rtol=1e-4, atol=1e-5)
    lengths = model[0].weight.detach().double().norm(dim=1)
    torch.testing.assert_close(layer.hyperplanes.length, lengths)


def test_a_norm_at_the_end_leaves_the_activation_before_it():
    model = nn.Sequential(nn.Linear(5, 6), Abs(), Norm())
    assert mahalens.audit(model, inputs()).layers[0].activation == "abs"


def test_records_with_distances_are_written_and_prune_leaves_them(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), OffsetL2(8, 6), nn.Linear(6, 3)
    )
    x = inputs()
    record = mahalens.audit(model, (x, LABELS))
    write_audit(record, tmp_path / "audit")
    smaller = mahalens.prune(model, record, x)
    torch.testing.assert_close(smaller(x), model(x))


def test_nothing_is_left_on_the_modules():
    model = nn.Sequential(OffsetL2(5, 7), nn.Linear(7, 3))
    mahalens.audit(model, inputs())
    shared = torch.nn.modules.module
    assert not shared._global_forward_hooks
    assert not shared._global_forward_pre_hooks
