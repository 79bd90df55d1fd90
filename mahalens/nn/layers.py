"""Layers that measure along one direction, and the checks that all layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.errors import InputError
from mahalens.geometry._checks import require_memory


class Abs(nn.Module):
    """Absolute value: the distance of a sample from a unit's hyperplane, on either side.

    A linear unit followed by ``Abs`` is ``|w·x + b|``, the Mahalanobis distance of a
    one-dimensional Gaussian whose mean lies on the hyperplane and whose spread is ``1/‖w‖``
    (arXiv 2410.19352, section 3.3).

    Shapes: any to the same.

    >>> Abs()(torch.tensor([-2.0, 3.0]))
    tensor([2., 3.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``|x|``."""
        return x.abs()


class Neg(nn.Module):
    """Sign flip: turns a distance (small = near) into an intensity (large = near).

    Shapes: any to the same.

    >>> Neg()(torch.tensor([2.0]))
    tensor([-2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``-x``."""
        return -x


class Norm(nn.Module):
    """Euclidean norm over units, ``√(Σₖ xₖ²)``: square, sum and square root in one.

    The square root has an infinite slope at 0. There the gradient and the second derivative are
    defined as 0: a sample at which every unit is off leaves training alone instead of turning it
    into NaN. Half precision is computed in float32, whose squares do not overflow.

    Shapes: ``[..., K]`` to ``[...]``.

    >>> x = torch.zeros(2, requires_grad=True)
    >>> Norm()(x).backward(); x.grad
    tensor([0., 0.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of the last axis."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        length = root((exact * exact).sum(-1))
        return length.to(x.dtype) if x.is_floating_point() else length


class AbsReLU(nn.Module):
    """Activation ``|zₖ|`` for the units marked ``absolute``, ``max(zₖ, 0)`` for the others.

    Two mirrored ReLU units that are read with equal weights are one absolute value,
    ``relu(z) + relu(-z) = |z|``. A layer in which some units have such a mirror and others have
    none becomes, without its mirrors, a layer of both kinds. :func:`mahalens.prune` makes these.

    Args:
        absolute: which units are absolute values, K times true or false.
        dim: the axis of the units: -1 for a Linear, -3 for a Conv2d (with or without a batch
            axis), -2 for a Conv1d.

    Shapes: any to the same; K along axis ``dim``. The buffer ``absolute`` is ``[K]``, bool.

    >>> AbsReLU([True, False])(torch.tensor([[-2.0, -3.0], [2.0, 3.0]]))
    tensor([[2., 0.],
            [2., 3.]])
    """

    absolute: Tensor

    def __init__(
        self,
        absolute: Tensor | Sequence[bool],
        *,
        dim: int = -1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        mask = torch.as_tensor(absolute, device=device)
        if mask.ndim != 1 or mask.dtype != torch.bool or not len(mask):
            raise InputError(
                f"AbsReLU was given {str(mask.dtype).removeprefix('torch.')} of shape "
                f"{tuple(mask.shape)}; give true or false for each unit"
            )
        if dim >= 0:
            raise InputError(
                f"AbsReLU with dim {dim}; count it from the end: -1 for a Linear, -3 for a Conv2d"
            )
        self.dim = dim
        self.register_buffer("absolute", mask.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        units = self.absolute.shape[0]
        if x.ndim < -self.dim or x.shape[self.dim] != units:
            raise InputError(
                f"AbsReLU of {units} units along axis {self.dim} was given an array of shape "
                f"{tuple(x.shape)}; give {units} along that axis"
            )
        mask = self.absolute.reshape(units, *[1] * (-self.dim - 1))
        return torch.where(mask, x.abs(), x.relu())

    def extra_repr(self) -> str:
        """Return the number of units of each kind."""
        if self.absolute.is_meta:  # a mask without values, as before weights are loaded
            return f"units={len(self.absolute)}, dim={self.dim}"
        count = int(self.absolute.sum())
        return f"absolute={count}, relu={len(self.absolute) - count}, dim={self.dim}"


def first_units(absolute: int, units: int) -> Tensor:
    """Return the mask ``[K]`` of a layer whose first ``absolute`` units are absolute values."""
    return torch.arange(units) < absolute


class PointSlope(nn.Module):
    """K linear units, each with a point in place of a bias: ``yₖ = Σᵢ wₖᵢ (xᵢ − pₖᵢ)``.

    ``weight`` holds the slopes and starts as that of ``nn.Linear``, number by number from the same
    seed; ``point`` starts at N(0, 0.1²), as the prototypes of :class:`~mahalens.nn.OffsetL2`.
    The layer is the linear one with the bias ``−Σᵢ wₖᵢ pₖᵢ``. Unlike a bias, a point can be read
    in the space of the inputs, and gradients move it along the slope.

    No differences ``[N, K, D]`` are made. Samples and points are both taken relative to the mean
    point of all units, which changes nothing but rounding: far from the origin, outputs keep
    their digits near the points as long as these are near each other.

    Shapes: ``[..., D]`` to ``[..., K]``; ``weight`` and ``point`` ``[K, D]``.

    >>> layer = PointSlope(2, 1)
    >>> state = {"weight": torch.tensor([[3.0, 2.0]]), "point": torch.ones(1, 2)}
    >>> _ = layer.load_state_dict(state)
    >>> layer(torch.tensor([[2.0, 3.0], [1.0, 1.0]])).tolist()
    [[7.0], [0.0]]
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("PointSlope", inputs=inputs, units=units)
        require_parameters(f"PointSlope({inputs}, {units})", 2 * inputs * units, device, dtype)
        self.inputs = inputs
        self.units = units
        self.weight = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.point = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw slopes and points anew, slopes first."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # what nn.Linear does
        nn.init.normal_(self.point, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the slope of each unit times the way from its point to each sample."""
        require_width("PointSlope", x, self.inputs)
        # No gradient goes through the centre: the outputs are the same whatever it is.
        centre = self.point.detach().mean(0)
        start = (self.weight * (centre - self.point)).sum(-1)
        return functional.linear(x - centre, self.weight, start)

    def extra_repr(self) -> str:
        """Return the arguments: the printed layer can be pasted back."""
        return f"inputs={self.inputs}, units={self.units}"


def root(square: Tensor) -> Tensor:
    """Return ``√square``, with a slope defined as 0 where the square is 0.

    Shapes: any to the same.
    """
    zero = square == 0  # false for NaN, which must come out as NaN
    # The root is taken of 1 where the square is 0: no infinite slope ever enters the graph.
    length = torch.where(zero, torch.ones_like(square), square).sqrt()
    return torch.where(zero, torch.zeros_like(length), length)


def scale_lengths(x: Tensor, beta: float) -> Tensor:
    """Return ``x / ‖x‖^β`` for each sample: β = 0 changes nothing, β = 1 gives length 1.

    Samples of length 0 stay 0. Lengths are measured in float32 at least.

    Shapes: ``[..., D]`` to the same.

    >>> scale_lengths(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    if beta == 0:
        return x
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    # Divided by its largest entry first, because squares overflow and vanish.
    largest = exact.abs().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, torch.ones_like(largest))
    unit = exact / largest
    length = root(unit.square().sum(-1, keepdim=True)).clamp(min=1)  # 1 or more, unless it is 0
    return (unit / length * (length * largest) ** (1 - beta)).to(x.dtype)


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Keep products in the dtype that is asked for, on devices that would change it."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def is_exporting() -> bool:
    """Return whether torch.export follows this call: sizes of batches are symbols then."""
    return torch.compiler.is_exporting()


@torch.no_grad()
def set_parameters(values: Sequence[tuple[Tensor, Tensor]], message: str) -> None:
    """Copy each second tensor into the first, or raise where a dtype cannot hold a number."""
    pairs = [(old, new.to(old.device, old.dtype).expand_as(old)) for old, new in values]
    if not all(bool(new.isfinite().all()) for _, new in pairs):
        raise InputError(message)
    for old, new in pairs:
        old.copy_(new)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, of Python or of NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_sizes(owner: str, **sizes: object) -> None:
    """Raise unless all sizes are whole numbers of at least 1."""
    for name, size in sizes.items():
        if not is_whole(size):
            raise InputError(f"{owner} with {size!r} {name}; give a whole number of at least 1")
        if not size >= 1:  # type: ignore[operator]
            raise InputError(f"{owner} with {size} {name}; give at least 1")


def require_known(owner: str, option: str, value: str, known: Sequence[str]) -> None:
    """Raise unless an option has one of its known values."""
    if value not in known:
        raise InputError(f"unknown {option} {value!r} of {owner}; known: {', '.join(known)}")


def require_width(owner: str, x: Tensor, inputs: int) -> None:
    """Raise unless the last axis of ``x`` has ``inputs`` entries."""
    if x.ndim < 1 or x.shape[-1] != inputs:
        raise InputError(
            f"{owner} of {inputs} inputs was given an array of shape {tuple(x.shape)}; "
            f"give [..., {inputs}]"
        )


def require_parameters(
    owner: str, count: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> None:
    """Raise where the memory for ``count`` parameters on the CPU is not there."""
    if torch.device(device or "cpu").type == "cpu":
        size = count * (dtype or torch.get_default_dtype()).itemsize
        require_memory(size, owner, "give fewer inputs, units or axes")
