"""The curvature at a stationary point, where the Hessian is not written out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from mahalens.nn import Chain
from mahalens.train.objective import Objective
from mahalens.train.stack import TrialStack

_Vector = NDArray[np.float64]

_FEW = 64
"""Up to here the whole Hessian is made, which is exact and quick."""


def curves_down(objective: Objective, stack: TrialStack, asked: Tensor) -> Tensor:
    """Return which of the trials ``asked`` ``[A]`` have a direction of negative curvature.

    The result ``[A]`` is false for the others.
    """
    down = torch.zeros_like(asked)
    eps = torch.finfo(stack.values.dtype).eps
    for trial in asked.nonzero().flatten().tolist():
        which = trial if stack.index is None else int(stack.index[trial])
        low, high = curvature_range(objective, stack.values[trial], which)
        down[trial] = low < -(eps**0.5) * abs(high)
    return down


def curvature_range(objective: Objective, values: Tensor, trial: int = 0) -> tuple[float, float]:
    """Return the smallest and largest eigenvalue of the Hessian of one trial's loss.

    For many parameters by Lanczos iteration, which only multiplies the Hessian with vectors, at
    the cost of a few hundred gradients. The smallest eigenvalue is then exact to about 1e-4 of
    the largest, and never too low: a negative one does exist.

    Shapes: values ``[P]``.
    """
    model = objective.model
    if isinstance(model, Chain):
        model = _smooth(model)
        module: nn.Module = model.build(dtype=values.dtype, device=values.device)
    else:
        module = model.module
    x, y = objective.data_of(trial)

    def loss(point: Tensor) -> Tensor:
        tensors = TrialStack(model, point[None]).tensors()
        parameters = {name: tensor[0] for name, tensor in tensors.items()}
        return objective.kind.mean(torch.func.functional_call(module, parameters, (x,)), y)

    # The Hessian is symmetric: pulling a vector back through the gradient multiplies it.
    pull_back = torch.func.vjp(torch.func.grad(loss), values)[1]

    def product(vector: _Vector) -> _Vector:
        (image,) = pull_back(torch.from_numpy(vector).to(values))
        result: _Vector = image.detach().cpu().double().numpy()
        return result

    width = len(values)
    if width <= _FEW:
        ends = np.linalg.eigvalsh(np.stack([product(unit) for unit in np.eye(width)]))
        return float(ends[0]), float(ends[-1])
    high = _largest(product, width)
    # Negated and shifted: Lanczos stops at a share of the eigenvalue it looks for, and would
    # never stop for one near 0.
    return high - _largest(lambda vector: high * vector - product(vector), width), high


def _smooth(chain: Chain) -> Chain:
    """Return the same function without ``Abs`` or ``Neg`` before ``Norm``, which squares them away.

    Autograd takes the bend of ``|x|²`` for 0 where x is 0, and would miss a unit to be woken.
    """
    following = [*chain.layers[1:], None]
    layers = [
        layer
        for layer, after in zip(chain.layers, following, strict=True)
        if layer.kind not in ("Abs", "Neg") or after is None or after.kind != "Norm"
    ]
    return Chain(chain.inputs, tuple(layers))


def _largest(product: Callable[[_Vector], _Vector], width: int) -> float:
    """Largest eigenvalue of the symmetric matrix with these products."""
    operator = LinearOperator(
        (width, width), matvec=lambda vector: product(vector.reshape(-1)), dtype=np.float64
    )
    # A fixed first vector: equal calls give equal answers.
    first = np.random.default_rng(0).standard_normal(width)
    try:
        largest = eigsh(
            operator,
            k=1,
            which="LA",
            v0=first,
            ncv=40,
            tol=1e-4,
            maxiter=100,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence:
        return float("nan")
    return float(largest[0])
