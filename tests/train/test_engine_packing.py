"""However the samples are packed and cut, the gradient is the same."""

import pytest
import torch

from mahalens.nn import Chain
from mahalens.train import CrossEntropy, MeanSquaredError, TrialStack
from mahalens.train.compiled import library
from mahalens.train.compiled.packing import panels as panels_of
from mahalens.train.compiled.packing import strips as strips_of

pytestmark = pytest.mark.skipif(library() is None, reason="there is no compiler here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("inputs", [8, 16, 32, 48])
@pytest.mark.parametrize("samples", [1, 15, 16, 100, 700])
def test_rows_serve_as_strips(inputs, samples, dtype):
    chain = Chain.parse("Linear(13), ReLU, Linear(3)", inputs=inputs)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, inputs, generator=generator, dtype=dtype)
    y = torch.randint(0, 3, (samples,), generator=generator)
    trials = TrialStack.from_modules(chain, [chain.build(dtype=dtype) for _ in range(2)])
    packed = CrossEntropy(chain, x, y, engine="compiled").loss_and_gradient(trials)
    objective = CrossEntropy(chain, x, y, engine="compiled")
    objective.compiled.small_bytes = 0
    for ours, theirs in zip(objective.loss_and_gradient(trials), packed, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    whole = inputs % (64 // x.element_size()) == 0
    assert (objective.compiled.packed.strips is None) == whole


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 16, 16), (3, 17, 5), (2, 40, 33)])
def test_panels_and_strips(shape):
    x = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) + 1
    panels, strips = panels_of(x, 16), strips_of(x, 16)
    for s in range(shape[0]):
        for n in range(shape[1]):
            for d in range(shape[2]):
                assert panels[s, n // 16, d, n % 16] == x[s, n, d]
                assert strips[s, d // 16, n, d % 16] == x[s, n, d]
    assert panels.count_nonzero() == strips.count_nonzero() == x.numel()


@pytest.mark.parametrize("units", range(1, 20))
def test_any_number_of_units(units):
    chain = Chain.parse(f"Linear({units}), Abs, Norm", inputs=7)
    generator = torch.Generator().manual_seed(units)
    x = torch.randn(50, 7, generator=generator, dtype=torch.float64)
    y = torch.rand(50, generator=generator, dtype=torch.float64)
    trials = TrialStack.from_modules(chain, [chain.build(dtype=torch.float64)])
    ours = MeanSquaredError(chain, x, y, engine="compiled").loss_and_gradient(trials)
    wanted = MeanSquaredError(chain, x, y, engine="torch").loss_and_gradient(trials)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
