"""Audit, keep, prune, audit again: the parts together, on networks with planted units."""

import pytest
import torch
from hand_records import MLP, centre, done, draw, fill, left, mlp, plant, same_outputs
from test_audit_prune import convnet, plant_norm
from torch import nn

from mahalens.auditing.network import audit
from mahalens.auditing.pruning.apply import prune
from mahalens.auditing.records.files import audit_json, load_audit
from mahalens.auditing.records.frames import rows_of, write_tables
from mahalens.nn import AbsReLU


def planted_mlp():
    model, x = mlp(), draw(300, 6, seed=99)
    plant(model[0], model[2], dead=[1, 4], copies=[(0, 3, 1.0), (2, 7, 2.7)])
    plant(model[0], model[2], mirrors=[(5, 8, 1.0), (6, 9, 0.3)])
    centre(model, "2", x)
    return model, x


def planted_convnet():
    model, x = convnet(), draw(60, 2, 10, 10, seed=5)
    plant_norm(model, dead=[1], copies=[(0, 2, 2.0)], mirrors=[(3, 5, 1.5)])
    centre(model, "4", x)
    plant(model[4], model[7], dead=[0], mirrors=[(1, 3, 0.5)])
    centre(model, "7", x)
    plant(model[7], dead=[6], copies=[(0, 1, 3.0)])
    return model, x


def planted_transformer():
    model = fill(
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1, enable_nested_tensor=False
        )
    )
    x = draw(30, 5, 4, seed=2)
    torch.backends.mha.set_fastpath_enabled(False)
    centre(model, "layers.0.linear1", x)
    torch.backends.mha.set_fastpath_enabled(True)
    inner = model.layers[0]
    plant(inner.linear1, inner.linear2, dead=[1], copies=[(0, 2, 2.0)])
    return model, x


WANTED = {
    planted_mlp: {
        ("0", "dead"): (1, 4),
        ("0", "duplicate"): ((0, 3), (2, 7)),
        ("0", "mirrored"): ((5, 8), (6, 9)),
    },
    planted_convnet: {
        ("0", "dead"): (1,),
        ("0", "duplicate"): ((0, 2),),
        ("0", "mirrored"): ((3, 5),),
        ("4", "dead"): (0,),
        ("4", "mirrored"): ((1, 3),),
        ("7", "dead"): (6,),
        ("7", "duplicate"): ((0, 1),),
    },
    planted_transformer: {
        ("layers.0.linear1", "dead"): (1,),
        ("layers.0.linear1", "duplicate"): ((0, 2),),
    },
}


@pytest.mark.parametrize("planted", WANTED, ids=lambda planted: planted.__name__)
class TestPlanted:
    def test_pruned(self, planted):
        model, x = planted()
        record = audit(model, x)
        pruned = prune(model, record, x)
        found = done(pruned)
        assert {key: tuple(sorted(units)) for key, units in found.items()} == WANTED[planted]
        same_outputs(pruned, model, x, eps=2e-5)

    def test_from_a_file(self, planted, tmp_path):
        model, x = planted()
        audit(model, x).save(tmp_path / "audit.safetensors")
        pruned = prune(model, load_audit(tmp_path / "audit.safetensors"), x)
        assert set(done(pruned)) == set(WANTED[planted])

    def test_again(self, planted):
        model, x = planted()
        before = audit(model, x)
        once = prune(model, before, x)
        after = audit(once, x)
        assert all(layer.units.dead == () for layer in after.layers)
        twice = prune(once, after, x)
        assert twice.pruned.done == ()
        assert "units " in str(before.diff(after))


@pytest.mark.parametrize("labelled", [True, False])
def test_records_of_real_audits_are_kept_and_told(labelled, tmp_path):
    model, x = planted_convnet()
    record = audit(model, (x, torch.arange(60) % 3), labelled=labelled, perturb=labelled)
    record.save(tmp_path / "audit.safetensors")
    loaded = load_audit(tmp_path / "audit.safetensors")
    assert str(record.diff(loaded)) == "nothing changed"
    assert audit_json(loaded) == audit_json(record)
    for what in ("units", "layers", "classes", "pairs", "suggestions", "perturbation"):
        assert len({tuple(row) for row in rows_of(record, what)}) <= 1
    names = {path.stem for path in write_tables(record, tmp_path)}
    assert ("classes" in names) == ("perturbation" in names) == labelled


def test_what_an_audit_says_of_folded_pairs():
    model, x = planted_mlp()
    small = prune(model, audit(model, x), x)
    assert isinstance(small[1], AbsReLU)
    again = prune(small, audit(small, x), x)
    assert again.pruned.done == ()
    assert left(again) == {}
    assert len(MLP) == len(audit(small, x).layers)
