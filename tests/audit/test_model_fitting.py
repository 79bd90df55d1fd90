"""In which shape a network takes its samples, found by trying."""

import pytest
import torch
from torch import nn

from mahalens.auditing.model_files import load_fitting, shapes_to_try
from mahalens.auditing.model_files.load import TRIED
from mahalens.auditing.model_files.loaded import quiet
from mahalens.errors import InputError

X = torch.rand(20, 64)
SHAPES = shapes_to_try((64,), (8, 8))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.RNN(8, 5, batch_first=True)

    def forward(self, x):
        assert x.ndim == 3, "wanted rows"
        return self.recurrent(x)[0][:, -1]


MODELS = {
    "flat": (lambda: nn.Linear(64, 3), (64,)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (1, 8, 8)),
    "rows": (Rows, (8, 8)),
}


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def factory(monkeypatch):
    """Makes a network known as a factory."""

    def known(make):
        monkeypatch.setattr(torch.nn, "my_network", make, raising=False)
        return "torch.nn:my_network"

    return known


def saved(model, shape, path, batch=None):
    example = torch.rand(batch or 3, *shape)
    dynamic = None if batch else ({0: torch.export.Dim("batch")},)
    with quiet():
        program = torch.export.export(model.eval(), (example,), dynamic_shapes=dynamic)
        torch.export.save(program, path)
    return str(path)


def test_shapes_to_try():
    assert shapes_to_try((1, 8, 8), (8, 8)) == [(1, 8, 8), (8, 8), (64,)]
    assert shapes_to_try((8, 8), (8, 8)) == [(8, 8), (1, 8, 8), (64,)]
    assert shapes_to_try((3072,), (3, 32, 32)) == [(3072,), (3, 32, 32)]
    assert shapes_to_try((12,), None) == [(12,)]
    assert shapes_to_try((16, 4), None) == [(16, 4)]
    assert shapes_to_try((1, 12), None) == [(1, 12), (12,)]


def test_factories(kind, factory):
    make, shape = MODELS[kind]
    loaded, taken = load_fitting(factory(make), None, X, SHAPES)
    assert taken == shape
    assert loaded.batch_size is None


@pytest.mark.parametrize(
    ("kind", "batch"),
    # torch exports a recurrent layer for one batch size
    [("flat", None), ("conv", None), ("flat", 2), ("conv", 7), ("rows", 2), ("rows", 7)],
)
def test_programs(kind, tmp_path, batch):
    make, shape = MODELS[kind]
    loaded, taken = load_fitting(
        saved(make(), shape, tmp_path / "m.pt2", batch), None, X[:5], SHAPES, trust=True
    )
    assert taken == shape
    assert loaded.batch_size == batch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["flat", "conv"])
def test_scripts(tmp_path, kind):
    make, shape = MODELS[kind]
    torch.jit.trace(make().eval(), torch.rand(3, *shape)).save(str(tmp_path / "m.pt"))
    loaded, taken = load_fitting(str(tmp_path / "m.pt"), None, X, SHAPES, trust=True)
    assert (taken, loaded.kind) == (shape, "TorchScript file")


def refused(*args):
    with pytest.raises(InputError) as error:
        load_fitting(*args, trust=True)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_no_shape_fits(factory, tmp_path):
    spec = factory(lambda: nn.Linear(10, 2))
    text = refused(spec, None, X, SHAPES)
    assert text.startswith(f"{spec}: the model fails on the data ([64]: ")
    assert "; [1, 8, 8] or [8, 8]: " in text
    assert text.endswith("with --shape, or other data")
    path = saved(nn.Linear(10, 2), (10,), tmp_path / "m.pt2")
    assert "or [8, 8]: the program takes [any, 10], the batch" in refused(path, None, X, SHAPES)


def test_a_program_without_a_batch_axis(tmp_path):
    with quiet():
        program = torch.export.export(nn.Linear(64, 2), (torch.rand(64),))
        torch.export.save(program, tmp_path / "m.pt2")
    text = refused(str(tmp_path / "m.pt2"), None, X, SHAPES)
    assert "one sample at a time; export it with a batch axis" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_shape_fits_a_script(tmp_path):
    torch.jit.trace(nn.Linear(10, 2), torch.rand(3, 10)).save(str(tmp_path / "m.pt"))
    text = refused(str(tmp_path / "m.pt"), None, X, SHAPES)
    assert "the model fails on the data ([64]: " in text


def test_samples_are_no_channels(factory):
    """A convolution would take [C, H, W] for one sample; the number tried is no number of C."""
    spec = factory(lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()))
    assert "the model fails on the data" in refused(spec, None, X, SHAPES)
    mixed = factory(lambda: nn.Sequential(nn.Flatten(0), nn.Linear(64 * TRIED, 2)))
    assert "5 samples give outputs of length 2" in refused(mixed, None, X, SHAPES)


def test_nothing_is_changed(factory):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    load_fitting(factory(lambda: model), None, X, SHAPES)
    assert torch.get_rng_state().equal(state)
    assert all(before[name].equal(value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
