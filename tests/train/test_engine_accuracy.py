"""How exactly the compiled engine computes: its own exp, sigmoid, tanh, and their slopes."""

import pytest
import torch
from torch import nn

from mahalens.nn import Chain
from mahalens.nn.chain import ELEMENTWISE
from mahalens.nn.layers import WITHOUT_PARAMETERS
from mahalens.train import CrossEntropy, MeanSquaredError, TrialStack
from mahalens.train.compiled import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no compiled engine: {why_not()}")

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
class TestAccuracy:
    """One sample per trial, ``1 · a(1 · x + 0) + 0`` and a target far away.

    With r the residual, the gradient is (2 r a' x, 2 r a', 2 r a, 2 r): it tells a and a'.
    """

    def grid(self, dtype):
        far = torch.tensor(
            [1e-30, 1e-10, 1e-3, 0.5, 8.6, 9, 17, 20, 20.5, 36, 80, 87.5, 88.5, 1000]
        )
        grid = torch.cat([far, -far, torch.linspace(-12, 12, 3001)]).double()
        if dtype == torch.float64:
            grid = torch.cat([grid, torch.tensor([-745.0, -709.5, -300.0, 300.0, 709.5]).double()])
        return grid.to(dtype)

    @pytest.mark.parametrize("kind", ELEMENTWISE)
    def test_activations_and_their_slopes(self, kind, dtype):
        x = self.grid(dtype)
        chain = Chain.parse(f"Linear(1), {kind}, Linear(1)", inputs=1)
        values = torch.tensor([1.0, 0, 1, 0], dtype=dtype).expand(len(x), 4)
        y = torch.full((len(x), 1, 1), 1e4, dtype=dtype)
        engine = MeanSquaredError(chain, x.reshape(-1, 1, 1), y, engine="compiled")
        gradient = engine.loss_and_gradient(TrialStack(chain, values))[1].double()
        value, slope = gradient[:, 2] / gradient[:, 3], gradient[:, 1] / gradient[:, 3]

        exact = x.double().clone().requires_grad_()
        wanted = WITHOUT_PARAMETERS[kind]()(exact)
        wanted.sum().backward()
        eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
        size = exact.detach().abs()
        # 1 + erf(x) of GELU and 1 - y of slopes are small differences, as they are in torch.
        lost = 4 * eps * size if kind == "GELU" else 0 * size
        error = (value - wanted.detach()).abs()
        assert bool((error <= 8 * eps * wanted.detach().abs() + lost + 1000 * tiny).all())
        assert bool(((slope - exact.grad).abs() <= 8 * eps * size.clamp_min(1)).all())

    def test_cross_entropy(self, dtype):
        logits = torch.tensor(
            [
                [0, 0, 0, 0],
                [1e-30, -1e-30, 0, 0],
                [1e-3, 2e-3, -1e-3, 0],
                [20, 0, -20, 1],
                [80, -80, 79, 0],
                [1000, -1000, 0, 999],
                [-1000, -1000, -1000, -1001],
                [-1e30, 1e30, 0, 0],
            ],
            dtype=dtype,
        )
        chain = Chain.parse("Linear(4, bias=False)", inputs=4)
        values = torch.eye(4, dtype=dtype).reshape(1, -1).repeat(len(logits), 1)
        for label in range(4):
            labels = torch.full((len(logits), 1), label)
            engine = CrossEntropy(chain, logits[:, None], labels, engine="compiled")
            loss, gradient = engine.loss_and_gradient(TrialStack(chain, values))
            exact = logits.double().clone().requires_grad_()
            wanted = nn.functional.cross_entropy(exact, labels[:, 0], reduction="none")
            wanted.sum().backward()
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(loss.double(), wanted.detach(), rtol=8 * eps, atol=8 * eps)
            slopes = exact.grad[:, :, None] * exact.detach()[:, None, :]
            error = (gradient.double().reshape(-1, 4, 4) - slopes).abs()
            assert bool((error <= 8 * eps * exact.detach().abs()[:, None, :] + 1e-300).all())
