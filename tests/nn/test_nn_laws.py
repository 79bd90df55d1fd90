"""What every module of ``mahalens.nn`` keeps to, and that none is left out of these laws.

The pages of each module test what it computes; here is what makes it an ordinary PyTorch module.
"""

import copy
import inspect
import io

import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import nn
from torch.func import functional_call

import mahalens.nn
from mahalens.errors import InputError
from mahalens.nn import (
    Abs,
    AbsReLU,
    DistanceHead,
    Mahalanobis,
    Neg,
    Norm,
    OffsetL2,
    PointSlope,
)

D = 4
MAKERS = {
    "Abs": lambda **k: Abs(),
    "Neg": lambda **k: Neg(),
    "Norm": lambda **k: Norm(),
    "AbsReLU": lambda **k: AbsReLU([True, False, True, False]),
    "OffsetL2": lambda **k: OffsetL2(D, 3, **k),
    "OffsetL2, published code": lambda **k: OffsetL2(D, 3, variant="published-code", **k),
    "PointSlope": lambda **k: PointSlope(D, 3, **k),
    "Mahalanobis": lambda **k: Mahalanobis(D, 3, 2, **k),
    "Mahalanobis, squared": lambda **k: Mahalanobis(D, 3, 1, squared=True, **k),
    "Mahalanobis, shared": lambda **k: Mahalanobis(D, 3, 4, shared=True, remainder="diagonal", **k),
    "DistanceHead": lambda **k: DistanceHead(D, 3, **k),
    "DistanceHead, diagonal": lambda **k: DistanceHead(
        D, 3, metric="diagonal", logits="density", **k
    ),
    "DistanceHead, low-rank": lambda **k: DistanceHead(
        D, 3, metric="low-rank", rank=2, logits="density", **k
    ),
    "DistanceHead, shared": lambda **k: DistanceHead(
        D, 3, metric="shared", rank=2, logits="squared", **k
    ),
}
WITH_WIDTH = [name for name in MAKERS if list(MAKERS[name]().parameters())]
HALVES = [torch.float16, torch.bfloat16]


def test_no_module_is_left_out():
    public = (getattr(mahalens.nn, name) for name in mahalens.nn.__all__)
    modules = {
        found.__name__
        for found in public
        if inspect.isclass(found) and issubclass(found, nn.Module)
    }
    assert modules == {type(make()).__name__ for make in MAKERS.values()}


def draw(shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def made(name, dtype=torch.float64):
    """A module with parameters away from their starting values, and what was set since."""
    module = MAKERS[name](dtype=dtype)
    with torch.no_grad():
        for i, (key, parameter) in enumerate(module.named_parameters()):
            parameter.copy_(0.3 * draw(parameter.shape, i + 1) + key.endswith("alpha"))
    if isinstance(module, DistanceHead):
        module.temperature.fill_(2.0)
        module.set_reject(draw((50, D), 9, dtype), 0.1, per_class=False)
    return module


def trained(module):
    return [p for p in module.parameters() if p.requires_grad]


@pytest.fixture(params=MAKERS)
def name(request):
    return request.param


@pytest.mark.parametrize("size", [0, -1, 2.5, "4", None, True], ids=repr)
@pytest.mark.parametrize("kind", [OffsetL2, PointSlope, Mahalanobis, DistanceHead])
def test_sizes_are_whole_numbers_of_at_least_one(kind, size):
    rank = (1,) * (kind is Mahalanobis)
    for sizes in ((size, 3), (4, size)):
        with pytest.raises(InputError, match=rf"^{kind.__name__} with .*; give .*at least 1$"):
            kind(*sizes, *rank)
    if kind is Mahalanobis:
        with pytest.raises(InputError, match=r"; give a rank from 1 to 4$"):
            kind(4, 3, size) if size is not None else kind(4, 3, 5)


class TestArrays:
    def test_axes_before_the_last_are_samples(self, name):
        module, x = made(name), draw((2, 5, D))
        whole = module(x)
        assert whole.shape[:2] == (2, 5)
        torch.testing.assert_close(whole[1, 3], module(x[1, 3]))
        assert torch.equal(module(x.transpose(0, 1)), whole.transpose(0, 1))

    def test_no_samples(self, name):
        module = made(name)
        x = torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
        out = module(x)
        assert out.shape == (0, *module(draw((2, D))).shape[1:])
        out.sum().backward()
        for tensor in (x, *trained(module)):
            assert tensor.grad is None or not bool(tensor.grad.any())

    def test_the_input_and_the_random_state_are_left_alone(self, name):
        module, x = made(name), draw((5, D))
        kept, state = x.clone(), torch.get_rng_state()
        before = copy.deepcopy(module.state_dict())
        first = module(x)
        assert torch.equal(x, kept)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(before[key], v) for key, v in module.state_dict().items())
        assert torch.equal(module.eval()(x), first)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_a_sample_that_is_not_finite_is_not_hidden_and_harms_no_other(self, name, bad):
        module, x = made(name), draw((3, D)).abs() + 1
        x[1, 2] = bad
        out = module(x)
        assert not bool(out[1].isfinite().all())
        assert bool(out[[0, 2]].isfinite().all())

    @pytest.mark.parametrize("shape", [(), (5,), (2, 5), (0, 3)], ids=str)
    def test_another_width_is_refused_in_one_line(self, name, shape):
        if name not in WITH_WIDTH:
            return
        with pytest.raises(InputError, match=rf"of {D} inputs was given .*; give \[") as caught:
            made(name)(torch.zeros(shape, dtype=torch.float64))
        assert "\n" not in str(caught.value)


class TestPrecision:
    def test_whole_numbers_are_measured_as_numbers(self, name):
        """In float32, which distances then are; counts of pixels are often given so."""
        if not name.startswith(("Norm", "OffsetL2", "Mahalanobis", "DistanceHead")):
            return
        module, x = made(name, torch.float32), torch.tensor([[3, 4, 0, 1], [0, 0, 1, 1]])
        assert torch.equal(module(x), module(x.float()))

    @pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
    def test_others_agree_with_double(self, name, dtype):
        exact, x = made(name), draw((6, D))
        module = copy.deepcopy(exact).to(dtype)
        out = module(x.to(dtype))
        assert out.dtype == dtype
        assert all(t.dtype in (dtype, torch.bool) for t in module.state_dict().values())
        size = 20 * torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), exact(x), rtol=size, atol=size)

    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_half_precision_trains(self, name, dtype):
        module = copy.deepcopy(made(name)).to(dtype)
        x = draw((6, D), 3, dtype).requires_grad_()
        module(x).sum().backward()
        for tensor in (x, *trained(module)):
            assert tensor.grad.dtype == dtype
            assert bool(tensor.grad.isfinite().all())

    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_half_precision_at_a_prototype_and_far_away(self, name, dtype):
        module = made(name).to(dtype)
        points = [t for key, t in module.named_parameters() if key.endswith(("mu", "point"))]
        near = points[0].detach().clone() if points else torch.zeros(3, D, dtype=dtype)
        near.requires_grad_()
        module(near).sum().backward()
        assert bool(near.grad.isfinite().all())
        if "squared" in repr(module) or "density" in repr(module):
            return  # a square of 300 is no number of float16
        far = torch.full((1, D), 150.0, dtype=dtype)
        assert bool(module(far).isfinite().all())
        wide = copy.deepcopy(module).double()(far.double())
        torch.testing.assert_close(module(far).double(), wide, rtol=0.02, atol=0.1)


class TestDerivatives:
    def test_first_and_second(self, name):
        module = made(name)
        names = [key for key, p in module.named_parameters() if p.requires_grad]
        held = dict(module.named_parameters())
        tensors = [held[key].detach().clone().requires_grad_() for key in names]

        def function(x, *parameters):
            return functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

        x = draw((3, D), 5)
        x = (x + 0.5 * x.sign()).requires_grad_()  # away from the bends of Abs and ReLU
        assert torch.autograd.gradcheck(function, (x, *tensors))
        assert torch.autograd.gradgradcheck(function, (x, *tensors))

    def test_many_modules_at_once(self, name):
        module, x = made(name), draw((5, D))
        state = {key: value.detach() for key, value in module.state_dict().items()}
        if not trained(module):
            return
        several = {key: torch.stack([v, 1.1 * v]) for key, v in state.items()}
        out = torch.vmap(lambda s: functional_call(module, s, (x,)))(several)
        for place, factor in enumerate((1.0, 1.1)):
            one = functional_call(module, {key: factor * v for key, v in state.items()}, (x,))
            torch.testing.assert_close(out[place], one)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
def test_compiled_by_torch_for_any_number_of_samples(name):
    torch.compiler.reset()
    module = made(name)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    for samples in (5, 9, 2):
        x = draw((samples, D), samples).requires_grad_()
        out, wanted = compiled(x), module(x)
        torch.testing.assert_close(out, wanted)
        weights = draw(wanted.shape, 7)
        torch.testing.assert_close(
            torch.autograd.grad((weights * out).sum(), [x, *trained(module)]),
            torch.autograd.grad((weights * wanted).sum(), [x, *trained(module)]),
        )


class TestKeeping:
    def same(self, module, other):
        x = draw((20, D), 3)
        assert torch.equal(module(x), other(x))
        if isinstance(module, DistanceHead):
            assert torch.equal(module.predict(x), other.predict(x))
            assert float(other.temperature) == 2.0
            assert torch.equal(module.threshold, other.threshold)
            assert torch.equal(module.reject_rate, other.reject_rate)

    def test_by_torch_without_pickled_code(self, name):
        module, other, file = made(name), MAKERS[name](dtype=torch.float64), io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        self.same(module, other)

    def test_by_safetensors(self, name):
        module, other = made(name), MAKERS[name](dtype=torch.float64)
        other.load_state_dict(load_bytes(save_bytes(module.state_dict())))
        self.same(module, other)

    def test_a_copy_is_whole_and_of_its_own(self, name):
        module = made(name)
        other = copy.deepcopy(module)
        self.same(module, other)
        assert repr(other) == repr(module)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)
        if list(other.parameters()):
            assert not torch.equal(module(draw((4, D))), other(draw((4, D))))

    def test_in_a_sequential_and_on_another_device(self, name):
        module, x = made(name), draw((3, D))
        assert torch.equal(nn.Sequential(nn.Identity(), module)(x), module(x))
        away = copy.deepcopy(module).to("meta")
        assert away(x.to("meta")).shape == module(x).shape
        assert repr(away)

    def test_what_is_printed_says_how_it_was_made(self, name):
        module = MAKERS[name]()
        said = module.extra_repr()
        assert "\n" not in said
        wanted = inspect.signature(type(module).__init__).parameters if said else {}
        for key, parameter in wanted.items():
            value = getattr(module, key, None)
            usual = parameter.default is not inspect.Parameter.empty and value == parameter.default
            if (
                key not in ("self", "device", "dtype", "remainder", "rank", "absolute")
                and not usual
            ):
                assert f"{key}={value!r}" in said
