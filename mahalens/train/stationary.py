"""What kind of point a gradient of 0 is, where the Hessian is too large to write down."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.train.objective import MeanSquaredError
from mahalens.train.stack import TrialStack


def curvature_range(objective: MeanSquaredError, values: Tensor) -> tuple[float, float]:
    """Smallest and largest eigenvalue of the Hessian of one trial's loss, by Lanczos iteration.

    Only products of the Hessian with vectors are made, so the cost is a few dozen gradients.

    Shapes: values ``[P]``.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    module = TrialStack(objective.chain, values[None])[0]

    def loss(point: Tensor) -> Tensor:
        tensors = TrialStack(objective.chain, point[None]).tensors()
        parameters = {name: tensor[0] for name, tensor in tensors.items()}
        output = torch.func.functional_call(module, parameters, (objective.x,))
        result: Tensor = (output - objective.y).square().mean()
        return result

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        tangent = torch.from_numpy(vector.reshape(-1)).to(values)
        image = torch.func.jvp(torch.func.grad(loss), (values,), (tangent,))[1]
        result: NDArray[np.float64] = image.detach().cpu().double().numpy()
        return result

    width = len(values)
    operator = LinearOperator((width, width), matvec=product, dtype=np.float64)
    ends = []
    # A fixed first vector: the answer must not depend on how often it was asked for.
    first = np.random.default_rng(0).standard_normal(width)
    for end in ("SA", "LA"):
        try:
            found = eigsh(
                operator, k=1, which=end, v0=first, tol=1e-3, maxiter=20, return_eigenvectors=False
            ).tolist()
        except ArpackNoConvergence as error:
            found = error.eigenvalues.real.tolist()
        ends.append(found[0] if found else float("nan"))
    return ends[0], ends[1]
