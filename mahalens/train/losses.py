"""Losses of stacked trials: the sum over samples, and its slope at the outputs."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mahalens.errors import InputError


class Loss(Protocol):
    """A mean over samples. Outputs are feature-major, ``[T, K, n]``."""

    name: str
    label: str

    def check(self, outputs: int | None, x: Tensor, y: Tensor) -> Tensor:
        """Targets as ``[S, N, K]`` or ``[S, N]``, S = 1 where trials share them; or an error.

        ``outputs`` is the number of units of the output, ``None`` for one number per sample.
        """

    def check_output(self, output: Tensor, y: Tensor) -> None:
        """Refuse targets ``[S, N, ...]`` that do not fit what a module returns for some samples."""

    def targets(self, y: Tensor) -> Tensor:
        """Targets of a block, laid out as :meth:`total` wants them."""

    def scale(self, outputs: int | None, samples: int) -> float:
        """What turns the total into the mean."""

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over samples ``[T]``."""

    def total_and_slope(
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Sum over samples ``[T]``, and the gradient of ``scale`` times it, ``[T, K, n]``."""

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of one plain module: outputs as it returns them, to one number."""


class SquaredError:
    """``1/(N K) Σ (f(xₙ)ₖ - yₙₖ)²``, as ``nn.MSELoss``."""

    name, label = "mse", "MSE"

    def check(self, outputs: int | None, x: Tensor, y: Tensor) -> Tensor:  # noqa: D102
        rows = tuple(x.shape[-2:-1])
        wanted = rows if outputs is None else (*rows, outputs)
        trials = tuple(x.shape[:1]) if x.ndim == 3 else ("T",)
        own = y.ndim == len(wanted) + 1 and (x.ndim == 2 or len(y) == len(x))
        if tuple(y.shape[own:]) != wanted:
            shapes = " or ".join(_written(shape) for shape in (wanted, (*trials, *wanted)))
            raise InputError(
                f"targets of shape {_written(y.shape)} for x of shape {_written(x.shape)} and "
                f"{_outputs(outputs)}; give {shapes}"
            )
        if y.dtype != x.dtype:
            raise InputError(f"x in {x.dtype}, y in {y.dtype}; make them equal")
        check_finite("y", y)
        y = y if own else y.unsqueeze(0)
        return y.unsqueeze(-1) if outputs is None else y

    def check_output(self, output: Tensor, y: Tensor) -> None:  # noqa: D102
        if output.shape[1:] != y.shape[2:] or not y.dtype.is_floating_point:
            raise InputError(
                f"targets of shape {_written(('N', *y.shape[2:]))} in {y.dtype} for outputs of "
                f"shape {_written(('N', *output.shape[1:]))} in {output.dtype}; make them equal"
            )
        check_finite("y", y)

    def targets(self, y: Tensor) -> Tensor:  # noqa: D102
        return y.transpose(1, 2).contiguous()

    def scale(self, outputs: int | None, samples: int) -> float:  # noqa: D102
        return 1 / (samples * (outputs or 1))

    def total(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return (output - target).square_().sum((1, 2))

    def total_and_slope(  # noqa: D102
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        residual = output - target
        return (residual * residual).sum((1, 2)), residual.mul_(2 * scale)

    def mean(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return (output - target).square().mean()


class CrossEntropy:
    """``1/N Σ (log Σₖ exp(fₖ(xₙ)) - f_c(xₙ))`` for the class c of sample n."""

    name, label = "cross-entropy", "cross-entropy"

    def check(self, outputs: int | None, x: Tensor, y: Tensor) -> Tensor:  # noqa: D102
        if outputs is None or outputs < 2:
            raise InputError(
                f"cross-entropy for {_outputs(outputs)}; end the chain in one unit per class, "
                "such as Linear(10)"
            )
        own = y.ndim == 2 and (x.ndim == 2 or len(y) == len(x))
        if tuple(y.shape[own:]) != tuple(x.shape[-2:-1]) or y.ndim > 2:
            raise InputError(
                f"labels of shape {_written(y.shape)} for x of shape {_written(x.shape)}; "
                "give one label per sample"
            )
        _check_labels(y, outputs)
        y = y.to(torch.int64)
        return y if own else y.unsqueeze(0)

    def check_output(self, output: Tensor, y: Tensor) -> None:  # noqa: D102
        if output.ndim < 2 or output.shape[2:] != y.shape[2:]:
            raise InputError(
                f"labels of shape {_written(('N', *y.shape[2:]))} for outputs of shape "
                f"{_written(('N', *output.shape[1:]))}; give one label per sample, and let the "
                "module end in one unit per class"
            )
        _check_labels(y, output.shape[1])

    def targets(self, y: Tensor) -> Tensor:  # noqa: D102
        return y.unsqueeze(1)

    def scale(self, outputs: int | None, samples: int) -> float:  # noqa: D102
        return 1 / samples

    def total(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        target = target.expand(len(output), -1, -1)
        chosen = output.gather(1, target)
        return (output.logsumexp(1, keepdim=True) - chosen).sum((1, 2))

    def total_and_slope(  # noqa: D102
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        target = target.expand(len(output), -1, -1)
        log_share = output.log_softmax(1)
        total = -log_share.gather(1, target).sum((1, 2))
        slope = log_share.exp_().mul_(scale)
        return total, slope.scatter_add_(1, target, slope.new_tensor(-scale).expand_as(target))

    def mean(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return torch.nn.functional.cross_entropy(output, target)


LOSSES: dict[str, type[SquaredError] | type[CrossEntropy]] = {
    "mse": SquaredError,
    "cross-entropy": CrossEntropy,
}


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse NaN and infinity in what the user gives: they would end every trial."""
    if not bool(tensor.isfinite().all()):
        place = (~tensor.isfinite()).nonzero()[0].tolist()
        raise InputError(f"{name} holds {float(tensor[tuple(place)])} at {place}; remove it")


def _check_labels(y: Tensor, classes: int) -> None:
    if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
        raise InputError(f"labels in {y.dtype}; give whole numbers, torch.int64")
    outside = ((y < 0) | (y >= classes)).nonzero()
    if len(outside):
        place = tuple(outside[0].tolist())
        raise InputError(
            f"label {int(y[place])} of sample {place[-1]}, but there are {classes} classes; "
            f"give 0 to {classes - 1}"
        )


def _written(shape: tuple[int | str, ...] | torch.Size) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _outputs(outputs: int | None) -> str:
    return "one number per sample" if outputs is None else f"{outputs} outputs per sample"
