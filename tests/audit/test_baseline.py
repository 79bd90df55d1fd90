"""Verdicts of whole networks, beside untrained ones: what must and must not change them."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mahalens
from mahalens.auditing.baseline import _joined
from mahalens.auditing.batches import DataBatches
from mahalens.nn import Abs


def words(record) -> list[str]:
    return [layer.verdict.word for layer in record.layers]


class Former(nn.Module):
    """A small transformer as GPT-2 (causal, norm first) or BERT has it, started as they are."""

    def __init__(self, causal: bool, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(12, width)
        options = {"activation": "gelu", "batch_first": True, "norm_first": causal}
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, **options)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, width)
        self.head = nn.Linear(width, 4)
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        self.register_buffer("mask", mask if causal else None)
        self.apply(self.start)

    @staticmethod
    def start(module: nn.Module) -> None:
        if isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_weight, std=0.02)
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        x = self.blocks(self.tokens(tokens) + self.places(torch.arange(12)), self.mask)
        return self.head(torch.tanh(self.pool(self.norm(x)[:, -1])))


class Known(Former):
    """The same, and the model knows how it is started."""

    def _init_weights(self, module: nn.Module) -> None:
        self.start(module)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_untrained_transformers_get_no_verdict(seed, causal, labelled):
    torch.manual_seed(seed)
    model = (Known if seed % 2 else Former)(causal)
    x, y = torch.randint(0, 50, (150, 12)), torch.randint(0, 4, (150,))
    record = mahalens.audit(model, (x, y), labelled=labelled, examples=False)
    assert not [word for word in words(record) if word.endswith("-like")]
    assert all(layer.verdict.reason for layer in record.layers)


def blobs(samples: int = 600, classes: int = 6, inputs: int = 12, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(classes, inputs, generator=draw)
    y = torch.arange(samples) % classes
    return means[y] + torch.randn(samples, inputs, generator=draw), y, means


def prototypes(means: torch.Tensor, units: int = 60) -> nn.Sequential:
    """A network with hyperplanes through the means of classes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(means.shape[1], units), Abs(), nn.Linear(units, len(means)))
    with torch.no_grad():
        of = torch.arange(units) % len(means)
        model[0].bias.copy_(-(model[0].weight * means[of]).sum(1))
    return model


def test_hyperplanes_through_the_classes_are_distance_like():
    x, y, means = blobs()
    record = mahalens.audit(prototypes(means), (x, y))
    layer, last = (layer.verdict for layer in record.layers)
    assert (layer.word, record.baseline) == ("distance-like", "fresh")
    assert layer.p_chance < 1e-3
    assert layer.p_baseline < 1e-3
    assert layer.baseline_score + 1 / 3 < layer.interval[0] <= layer.score <= layer.interval[1]
    assert last.word == "not judged"
    assert "no activation marks z = 0" in last.reason
    without = nn.Sequential(*prototypes(means)[:2])  # outputs after an activation are judged
    assert words(mahalens.audit(without, (x, y))) == ["distance-like"]


@pytest.mark.parametrize("end", [None, nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_constant_added_to_all_logits_changes_no_verdict(end):
    x, y, means = blobs()
    model = prototypes(means)
    if end is not None:
        model.append(end)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved[2].bias += 25
    before, after = (mahalens.audit(one, (x, y)) for one in (model, moved))
    assert words(before) == words(after) == ["distance-like", "not judged"]
    assert [a.verdict for a in before.layers] == [b.verdict for b in after.layers]
    assert before.accuracy == after.accuracy


def test_the_baseline_can_be_given_left_out_or_fail():
    x, y, means = blobs()
    model = prototypes(means)
    random = torch.get_rng_state()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    given = mahalens.audit(model, (x, y), baseline=copy.deepcopy(model))
    assert (given.baseline, words(given)[0]) == ("given", "not judged")
    assert "that differs little from the same network untrained" in given.layers[0].verdict.reason
    none = mahalens.audit(model, (x, y), baseline=None)
    assert (none.baseline, words(none)[0]) == ("none", "distance-like")
    assert none.layers[0].verdict.p_baseline is None
    model.__deepcopy__ = lambda memo: 1 / 0
    failed = mahalens.audit(model, (x, y))
    assert (failed.baseline, words(failed)[0]) == ("none", "distance-like")
    assert any("chance alone decides (ZeroDivisionError" in note for note in failed.notes)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


class Raw(nn.Module):
    """Weights as plain parameters, which nothing can start anew."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(model[0].weight), nn.Parameter(model[0].bias)

    def forward(self, x):
        return functional.linear(x, self.w, self.b).abs()


def test_weights_without_a_start_are_shuffled():
    x, y, means = blobs()
    record = mahalens.audit(Raw(prototypes(means)), (x, y))
    assert record.baseline == "shuffled"
    assert any("cannot draw new starting values for w" in note for note in record.notes)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_layers_without_units_or_inputs_are_skipped():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.none = nn.Linear(6, 8), nn.Linear(8, 0)
            self.nothing, self.b = nn.Linear(0, 3), nn.Linear(8, 3)

        def forward(self, x):
            hidden = torch.relu(self.a(x))
            return self.b(hidden) + self.nothing(self.none(hidden))

    record = mahalens.audit(Model(), torch.randn(20, 6))
    assert [layer.name for layer in record.layers] == ["a", "b"]
    assert {part.name: part.reason for part in record.skipped} == {
        "none": "has no units",
        "nothing": "has no inputs",
    }


def relu_network(scale: float) -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 6)
    )
    with torch.no_grad():
        model[0].bias[:3] = -1e4  # dead
        model[0].weight *= scale
        model[0].bias *= scale
        model[2].weight /= scale
    return model


@settings(max_examples=8, deadline=None)
@given(st.floats(-12, 12))
def test_scaling_a_layer_and_its_reader_back_changes_nothing(power):
    x, y, _ = blobs(samples=200)
    plain, scaled = (
        mahalens.audit(relu_network(scale), (x, y), examples=False) for scale in (1.0, 10**power)
    )
    assert plain.layers[0].units.dead == (0, 1, 2)
    for one, other in zip(plain.layers, scaled.layers, strict=True):
        assert one.units.dead == other.units.dead
        assert one.units.saturated == other.units.saturated
        assert one.verdict.word == other.verdict.word
        assert one.verdict.score == pytest.approx(other.verdict.score)
        assert torch.allclose(one.units.active, other.units.active)
        assert torch.allclose(one.units.skewness, other.units.skewness, atol=1e-3, equal_nan=True)
    assert plain.accuracy == scaled.accuracy


def test_small_values_that_are_read_with_large_weights_are_alive():
    x, y, _ = blobs(samples=200)
    record = mahalens.audit(relu_network(1e-7), (x, y))
    assert record.layers[0].units.greatest.max() < 1e-5
    assert record.layers[0].units.dead == (0, 1, 2)
    assert "broken" not in words(record)


def test_a_faint_unit_is_dead_only_if_its_reader_does_not_hear_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(300, 4)
    with torch.no_grad():
        model[0].weight[:2] *= 1e-8
        model[0].bias[:2] *= 1e-8
        model[2].weight[:, 0] *= 1e8
    assert mahalens.audit(model, x).layers[0].units.dead == (1,)


@pytest.mark.parametrize("size", [1, 100, 400])  # the last batch has one sample
def test_untrained_networks_with_batch_norm_get_no_verdict_in_any_batches(size):
    torch.manual_seed(1)
    y = torch.arange(401) % 5
    x = torch.randn(401, 10) + 3 * functional.one_hot(y, 10)
    layers = [(nn.Linear(wide, 64), nn.BatchNorm1d(64), nn.ReLU()) for wide in (10, 64)]
    model = nn.Sequential(*(part for parts in layers for part in parts), nn.Linear(64, 5))
    with torch.no_grad():
        for _ in range(60):  # only the statistics of the norms
            model(x)
    record = mahalens.audit(model.eval(), DataLoader(TensorDataset(x, y), batch_size=size))
    assert record.baseline == "fresh"
    assert words(record) == ["not judged"] * 3


def test_batches_are_joined_for_batch_norms_where_their_samples_are_alike():
    def batches(*shapes):
        return DataBatches([torch.randn(*shape) for shape in shapes], 8)

    def sizes(*shapes):
        return [batch.size for batch in _joined(batches(*shapes))]

    assert sizes((1, 3), (1, 3), (1, 3)) == [3]
    assert sizes((31, 3), (1, 3), (1, 3), (40, 3), (1, 3)) == [32, 41]
    assert sizes((1, 3), (2, 4), (1, 4), (1, 5), (5, 6)) == [3, 5]
    assert sizes((1, 3)) == [1]
    given = [{"x": torch.arange(n * 2.0).view(n, 2), "scale": torch.tensor(2.0)} for n in (3, 2)]
    (whole,) = _joined(DataBatches(given, 8))
    expected = torch.cat([part["x"] for part in given])
    assert torch.equal(whole.kwargs["x"], expected)
    assert whole.kwargs["scale"] == 2
