"""Rows that a layer is fed: patches against torch's own unfold, and what is drawn of many."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starts import planted, seeded
from torch import nn

from mahalens.errors import InputError
from mahalens.init.targets import RowDraw, rows_of
from mahalens.nn import OffsetL2, PointSlope

GEOMETRIES = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "stride": (2, 1)},
    {"kernel_size": 3, "padding": (2, 1)},
    {"kernel_size": 2, "dilation": (2, 3), "stride": 2},
    {"kernel_size": (3, 2), "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": 2, "padding_mode": "circular"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
    {"kernel_size": 1},
]
CONVOLUTIONS = [
    *((nn.Conv2d, (7, 8), geometry) for geometry in GEOMETRIES),
    (nn.Conv1d, (9,), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.Conv3d, (5, 4, 6), {"kernel_size": 3, "stride": 2, "padding": 1}),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(("kind", "size", "geometry"), CONVOLUTIONS, ids=str)
def test_patches_of_a_convolution_are_what_its_weight_multiplies(kind, size, geometry):
    layer = kind(2, 3, **geometry).double().requires_grad_(False)
    x = torch.randn(4, 2, *size, generator=seeded(), dtype=torch.float64)
    expected = layer(x).movedim(1, -1).reshape(-1, 3)  # sample by sample, raster order
    outputs = rows_of(layer, x).values @ layer.weight.flatten(1).T + layer.bias
    torch.testing.assert_close(outputs, expected)


@pytest.mark.parametrize("kind", [nn.Linear, PointSlope, OffsetL2])
def test_axes_before_the_last_are_rows(kind):
    x = torch.randn(5, 4, 3, generator=seeded())
    labels = torch.arange(5)
    rows = rows_of(kind(3, 2), x, labels)
    assert torch.equal(rows.values, x.reshape(20, 3).double())
    assert torch.equal(rows.labels, labels.repeat_interleave(4))


def test_each_patch_has_the_class_of_its_sample():
    x = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 4, 4)
    rows = rows_of(nn.Conv2d(1, 2, 2), x, torch.arange(3))
    assert torch.equal(rows.values[:, 0].long(), rows.labels)
    assert rows.count == 27


class TestDrawing:
    @settings(deadline=None, max_examples=40)
    @given(count=st.integers(1, 1400), limit=st.integers(1, 300))
    def test_so_many_distinct_rows_in_their_order(self, count, limit):
        x = torch.arange(float(count))[:, None]
        drawn = rows_of(nn.Linear(1, 1), x, torch.arange(count), limit)
        values = drawn.values[:, 0]
        assert len(values) == min(count, limit)
        assert bool((values.diff() > 0).all())
        assert torch.equal(values.long(), drawn.labels)

    def test_every_row_is_as_likely(self):
        """The mean of the numbers drawn is that of all, within five standard errors."""
        x = torch.arange(50_000.0)[:, None]
        values = rows_of(nn.Linear(1, 1), x, limit=2000).values
        assert abs(float(values.mean()) / 25_000 - 1) < 5 / (3 * 2000) ** 0.5
        assert abs(float(values.var()) / (50_000**2 / 12) - 1) < 0.2

    def test_blocks_make_no_difference(self):
        layer, x = nn.Linear(4, 2), planted()[0].float()
        draw = RowDraw(layer, 20)
        for part in x.split(512):
            draw.add(part)
        assert torch.equal(draw.result().values, rows_of(layer, x, limit=20).values)

    def test_none_is_all(self):
        assert rows_of(nn.Linear(1, 1), torch.zeros(30_000, 1), limit=None).count == 30_000
        assert rows_of(nn.Linear(1, 1), torch.zeros(30_000, 1)).count == 20_000

    @pytest.mark.parametrize("limit", [0, -1, True])
    def test_no_rows(self, limit):
        with pytest.raises(InputError, match=r"rows is .*, wanted a whole number of at least 1"):
            rows_of(nn.Linear(1, 1), torch.zeros(3, 1), limit=limit)
