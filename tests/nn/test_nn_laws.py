"""What every module of ``mahalens.nn`` keeps to: its formula, and the ways of PyTorch."""

import copy
import inspect
import io
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import CASES, HALVES, draw, made, refuses, trained
from safetensors.torch import load, save
from torch import nn
from torch.func import functional_call, jacfwd, jacrev

import mahalens
import mahalens.nn
from mahalens.nn import DistanceHead, Mahalanobis, OffsetL2, PointSlope

D = 4
WITH_PARAMETERS = [name for name in CASES if list(made(name).parameters())]
DISTANCES = [name for name in CASES if name.startswith(("OffsetL2", "Mahalanobis", "Distance"))]
UNSQUARED = [n for n in CASES if not re.search("squared|density", repr(made(n)))]
"""The square of 300 is no number of float16."""


@pytest.fixture(params=CASES)
def name(request):
    return request.param


def test_no_module_is_left_out():
    public = [getattr(mahalens.nn, name) for name in mahalens.nn.__all__]
    classes = filter(inspect.isclass, public)
    modules = {found.__name__ for found in classes if issubclass(found, nn.Module)}
    assert modules == {type(made(name)).__name__ for name in CASES}
    assert all(getattr(mahalens, name) is getattr(mahalens.nn, name) for name in modules)


class TestFormula:
    @pytest.mark.parametrize("shape", [(D,), (5, D), (2, 5, D), (0, D), (2, 0, D)], ids=str)
    def test_is_the_printed_one(self, name, shape, dtype):
        module, x = made(name, dtype), draw(shape, 0, dtype)
        out, wanted = module(x), CASES[name].formula(x, module.state_dict())
        assert out.dtype == dtype
        torch.testing.assert_close(out, wanted, rtol=2e-5, atol=1e-6)

    @settings(deadline=None, max_examples=60)
    @given(st.sampled_from(sorted(CASES)), *[st.integers(1, 7)] * 3)
    def test_for_any_size(self, name, samples, inputs, units):
        module, x = made(name, inputs=inputs, units=units), draw((samples, inputs), 5)
        torch.testing.assert_close(module(x), CASES[name].formula(x, module.state_dict()))

    def test_samples_need_not_be_contiguous(self, name):
        module, x = made(name), draw((D, 5, 2)).permute(2, 1, 0)
        torch.testing.assert_close(module(x), module(x.contiguous()))
        torch.testing.assert_close(module(x)[1, 3], module(x[1, 3]))

    def test_no_samples_leave_no_gradient(self, name):
        module, x = made(name), torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
        module(x).sum().backward()
        for tensor in (x, *trained(module)):
            assert tensor.grad is None or not bool(tensor.grad.any())

    def test_the_input_and_the_random_state_are_left_alone(self, name):
        module, x = made(name), draw((5, D))
        copied, state = x.clone(), torch.get_rng_state()
        before = copy.deepcopy(module.state_dict())
        first = module(x)
        assert torch.equal(x, copied)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(before[key], v) for key, v in module.state_dict().items())
        assert torch.equal(module.eval()(x), first)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_a_sample_that_is_not_finite_is_not_hidden_and_harms_no_other(self, name, bad):
        module, x = made(name), draw((3, D)).abs() + 1
        x[1, 2] = bad
        out = module(x)
        assert not bool(out[1].isfinite().all())
        assert bool(out[[0, 2]].isfinite().all())

    @pytest.mark.parametrize("name", DISTANCES)
    def test_whole_numbers_are_measured_as_numbers(self, name):
        """In float32, which distances then are; counts of pixels are often given so."""
        module, x = made(name, torch.float32), torch.tensor([[3, 4, 0, 1], [0, 0, 1, 1]])
        assert torch.equal(module(x), module(x.float()))


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
    def test_others_agree_with_double_and_train(self, name, dtype):
        exact, x = made(name), draw((6, D), 3)
        module, rounded = copy.deepcopy(exact).to(dtype), x.to(dtype).requires_grad_()
        out = module(rounded)
        assert out.dtype == dtype
        state = {key: t.dtype for key, t in module.state_dict().items()}
        state.pop("beta", None)  # always in a dtype that holds it exactly
        assert set(state.values()) <= {dtype, torch.bool}
        size = 20 * torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), exact(x), rtol=size, atol=size)
        out.sum().backward()
        for tensor in (rounded, *trained(module)):
            assert tensor.grad.dtype == dtype
            assert bool(tensor.grad.isfinite().all())

    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_half_precision_at_a_prototype(self, name, dtype):
        module = made(name).to(dtype)
        points = [t for key, t in module.named_parameters() if key.endswith(("mu", "point"))]
        near = points[0].detach().clone() if points else torch.zeros(3, D, dtype=dtype)
        near.requires_grad_()
        module(near).sum().backward()
        assert bool(near.grad.isfinite().all())

    @pytest.mark.parametrize("name", UNSQUARED)
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    def test_half_precision_far_away(self, name, dtype):
        module, far = made(name).to(dtype), torch.full((1, D), 150.0, dtype=dtype)
        wide = copy.deepcopy(module).double()(far.double())
        torch.testing.assert_close(module(far).double(), wide, rtol=0.02, atol=0.1)

    @pytest.mark.parametrize("name", DISTANCES)
    def test_autocast_does_not_touch_distances(self, name):
        module, x = made(name, torch.float32), draw((5, D), 0, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = module(x)
        assert torch.equal(inside, module(x))


class TestDerivatives:
    def function(self, name, **sizes):
        """The module as a function of samples and trained parameters, the formula, and both."""
        module = made(name, **sizes)
        names = [key for key, p in module.named_parameters() if p.requires_grad]
        state = {key: value.detach() for key, value in module.state_dict().items()}

        def call(x, *parameters):
            return functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

        def formula(x, *parameters):
            changed = dict(zip(names, parameters, strict=True))
            return CASES[name].formula(x, state | changed)

        x = draw((3, D), 5)
        x = x + 0.5 * x.sign()  # away from the bends of Abs and ReLU
        return call, formula, [x, *(state[key].clone() for key in names)]

    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_first_and_second(self, name):
        call, _, tensors = self.function(name)
        tensors = [t.requires_grad_() for t in tensors]
        assert torch.autograd.gradcheck(
            call, tensors, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)

    @pytest.mark.parametrize("inner", [jacrev, jacfwd])
    @pytest.mark.parametrize("outer", [jacrev, jacfwd])
    @pytest.mark.parametrize("name", ["Norm", *WITH_PARAMETERS])
    @pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
    def test_second_in_every_mode(self, name, inner, outer):
        """PyTorch by itself gets forward in forward wrong for a Function, without a word."""
        call, formula, tensors = self.function(name, units=2)
        every = tuple(range(len(tensors)))

        def second(f, outer, inner):
            return outer(inner(lambda *a: f(*a).square().sum(), argnums=every), argnums=every)

        torch.testing.assert_close(
            second(call, outer, inner)(*tensors), second(formula, jacrev, jacrev)(*tensors)
        )

    @pytest.mark.parametrize("name", DISTANCES[: DISTANCES.index("DistanceHead")])
    def test_at_a_prototype_they_are_exactly_zero(self, name, dtype):
        module = made(name, dtype)
        floor = 1e-12**0.5 if "published" in name else 0.0
        x = module.mu.detach().clone().requires_grad_()
        distances = module(x).diagonal()
        torch.testing.assert_close(distances, torch.full((3,), floor, dtype=dtype), atol=0, rtol=0)
        distances.sum().backward()
        for tensor in (x, *module.parameters()):
            assert torch.equal(tensor.grad, torch.zeros_like(tensor))

    @pytest.mark.parametrize("name", WITH_PARAMETERS)
    def test_many_modules_at_once(self, name):
        """vmap over states equals a loop, in value and gradient."""
        module, x = made(name), draw((5, D))
        state = {key: value.detach() for key, value in module.state_dict().items()}
        several = {key: torch.stack([v, 1.1 * v]) for key, v in state.items()}

        def loss(state):
            return functional_call(module, state, (x,)).square().sum()

        both = torch.func.grad_and_value(loss)
        gradients, values = torch.vmap(both)(several)
        for place, factor in enumerate((1.0, 1.1)):
            gradient, value = both({key: factor * v for key, v in state.items()})
            torch.testing.assert_close(values[place], value)
            for key in gradient:
                torch.testing.assert_close(gradients[key][place], gradient[key])


@pytest.mark.slow
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


def through_torch(state):
    torch.save(state, file := io.BytesIO())
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


class TestKeeping:
    def same(self, module, other):
        x = draw((20, D), 3)
        assert repr(other) == repr(module)
        assert torch.equal(module(x), other(x))
        if isinstance(module, DistanceHead):
            assert torch.equal(module.predict(x), other.predict(x))

    @pytest.mark.parametrize("through", [through_torch, lambda state: load(save(state))])
    def test_the_state_comes_back_whole(self, name, through):
        module, other = made(name), CASES[name].make(D, 3, dtype=torch.float64)
        other.load_state_dict(through(module.state_dict()))
        self.same(module, other)

    def test_a_copy_is_whole_and_of_its_own(self, name):
        module = made(name)
        other = copy.deepcopy(module)
        self.same(module, other)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)
        x = draw((4, D))
        assert torch.equal(module(x), other(x)) == (name not in WITH_PARAMETERS)

    def test_in_a_sequential_and_on_another_device(self, name):
        module, x = made(name), draw((3, D))
        assert torch.equal(nn.Sequential(nn.Identity(), module)(x), module(x))
        away = copy.deepcopy(module).to("meta")
        assert away(x.to("meta")).shape == module(x).shape
        assert repr(away)

    def test_what_is_printed_says_how_it_was_made(self, name):
        module = made(name)
        printed = module.extra_repr()
        assert "\n" not in printed
        wanted = inspect.signature(type(module).__init__).parameters if printed else {}
        for key, parameter in wanted.items():
            value = getattr(module, key, None)
            usual = parameter.default is not inspect.Parameter.empty and value == parameter.default
            hidden = ("self", "device", "dtype", "remainder", "rank", "absolute")
            assert usual or key in hidden or f"{key}={value!r}" in printed

    @pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("Off", "Point", "Maha"))])
    def test_what_is_printed_can_be_pasted_back(self, name):
        module = made(name)
        again = eval(repr(module), {type(module).__name__: type(module)})
        assert repr(again) == repr(module)
        again.double().load_state_dict(module.state_dict())
        assert torch.equal(again(draw((3, D))), module(draw((3, D))))


class TestRefusals:
    @pytest.mark.parametrize("size", [0, -1, 2.5, "4", None, True], ids=repr)
    @pytest.mark.parametrize("kind", [OffsetL2, PointSlope, Mahalanobis, DistanceHead])
    def test_sizes(self, kind, size):
        rank = (1,) * (kind is Mahalanobis)
        for sizes in ((size, 3), (4, size)):
            refuses(rf"{kind.__name__} with .*; give .*at least 1$", kind, *sizes, *rank)

    @pytest.mark.parametrize("rank", [0, -1, 5, 2.5, "4", True], ids=repr)
    def test_rank(self, rank):
        message = r"Mahalanobis of rank .* on 4 inputs; give a rank from 1 to 4$"
        refuses(message, Mahalanobis, 4, 3, rank)

    @pytest.mark.parametrize("shape", [(), (5,), (2, 5), (0, 3), (4, 1)], ids=str)
    @pytest.mark.parametrize("name", WITH_PARAMETERS)
    def test_another_width(self, name, shape):
        message = rf"\w+ of {D} inputs was given an array of shape \(.*; give \[..., {D}\]$"
        refuses(message, made(name), torch.zeros(shape, dtype=torch.float64))

    @pytest.mark.parametrize("name", WITH_PARAMETERS)
    def test_arrays(self, name):
        refuses(
            rf"\w+ of {D} inputs was given a ndarray; give a tensor", made(name), np.zeros((5, D))
        )

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: DistanceHead(10**6, 10**7), r"OffsetL2\(1000000, 10000000\): would take 80,0"),
            (lambda: Mahalanobis(10**5, 10**4, 10**3), r"Mahalanobis\(100000, 10000, 1000\): woul"),
            (lambda: PointSlope(10**6, 10**7), r"PointSlope\(1000000, 10000000\): would take"),
            (lambda: OffsetL2(3, 4, variant="code"), "unknown variant 'code' of OffsetL2; known:"),
            (lambda: Mahalanobis(3, 2, 1, remainder="full"), "unknown remainder 'full' of Mahal"),
        ],
    )
    def test_arguments(self, make, message):
        refuses(message, make)

    def test_any_size_is_made_where_no_memory_is_taken(self):
        assert DistanceHead(10**6, 10**7, device="meta").prototypes.is_meta
