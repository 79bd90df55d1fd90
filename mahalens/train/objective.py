"""Objectives: a loss on a data set, for all trials at once."""

from __future__ import annotations

import abc
import functools
from typing import ClassVar, Self

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.nn import Chain
from mahalens.train.compiled import DTYPES, CompiledEngine, why_not
from mahalens.train.engines import LOSSES, FunctionalEngine, TorchEngine, check_finite
from mahalens.train.layers import parameter_count
from mahalens.train.stack import Template, TrialStack

_ENGINES = ("auto", "compiled", "torch")


class Objective(abc.ABC):
    """Loss ``L_t`` of T trials on one data set, and its gradient.

    ``model`` is the architecture: a chain, or the template of any other module (``trials.model``).
    Samples may be shared by all trials, or each trial has different ones (for a template pass
    ``own=True``).

    Chains are computed by the compiled engine where there is one, otherwise by torch; ``engine``
    chooses. Both cut the samples into blocks that fit in the cache (``block`` samples, by default
    as many as suit the machine); memory does not grow with N·T·K. Other modules go through
    ``torch.func``.

    Shapes: x ``[N, D]`` or ``[T, N, D]``; y as the loss wants it, with a leading T where trials
    have different targets. Losses are ``[T]``, gradients ``[T, P]`` in the layout of
    :class:`mahalens.train.TrialStack`.
    """

    loss_name: ClassVar[str]

    def __init__(
        self,
        model: Chain | Template,
        x: Tensor,
        y: Tensor,
        *,
        engine: str = "auto",
        block: int | None = None,
        own: bool = False,
    ) -> None:
        if engine not in _ENGINES:
            raise InputError(f"an engine of {engine!r}; known: {', '.join(_ENGINES)}")
        if block is not None and block < 1:
            raise InputError(f"a block of {block} samples; give at least 1")
        self.model = model
        self.x, self.y = x, y
        self.kind = LOSSES[self.loss_name]
        self._block, self._engine_choice = block, engine
        self._x, self._y = self._checked(own)
        sets = [len(tensor) for tensor in (self._x, self._y) if len(tensor) > 1]
        self.trials = max(sets, default=None)  # None: all trials share their data
        self.samples = self._x.shape[1]
        self._engine = self._choose(engine)

    def _checked(self, own: bool) -> tuple[Tensor, Tensor]:
        """Samples and targets with an axis for trials in front, of length 1 where they share."""
        x, y = self.x, self.y
        if isinstance(self.model, Template):
            if not (x.ndim and y.ndim and x.shape[: 1 + own] == y.shape[: 1 + own]):
                wanted = "[T, N, ...]" if own else "[N, ...]"
                raise InputError(
                    f"x of shape {list(x.shape)} and y of shape {list(y.shape)}; give both {wanted}"
                )
            samples = x.shape[own] if x.ndim > own else 0
        else:
            if x.ndim not in (2, 3) or x.shape[-1] != self.model.inputs:
                inputs = self.model.inputs
                raise InputError(
                    f"x of shape {list(x.shape)} for the chain {self.model}; give [N, {inputs}], "
                    f"or [T, N, {inputs}] where each trial has its own"
                )
            samples = x.shape[-2]
        if not samples:
            raise InputError("no samples; give at least 1")
        if x.dtype.is_floating_point:
            check_finite("x", x)
        elif isinstance(self.model, Chain):
            raise InputError(f"x in {x.dtype}; give float32 or float64")
        if isinstance(self.model, Template):
            sets = (x, y) if own else (x.unsqueeze(0), y.unsqueeze(0))
            self.kind.check_output(self.model.output_on(sets[0][0, :2]), sets[1])
            return sets
        y = self.kind.check(self.model.outputs, x, y)
        return (x if x.ndim == 3 else x.unsqueeze(0)), y

    def _choose(self, engine: str) -> CompiledEngine | TorchEngine | FunctionalEngine:
        if isinstance(self.model, Template):
            if engine == "compiled":
                raise InputError(f"{self.model} is not a chain of layers, so it cannot be compiled")
            return FunctionalEngine(self.model, self.kind, self._x, self._y)
        if not parameter_count(self.model):
            raise InputError(f"the chain {self.model} has no parameters to train")
        if engine == "torch":
            return self.by_torch
        reason = why_not() if self.x.device.type == "cpu" else f"the device is {self.x.device}"
        if self.x.dtype not in DTYPES:
            reason = f"x is in {self.x.dtype}"
        if not reason:
            return CompiledEngine(self.model, self.loss_name, self._x, self._y, block=self._block)
        if engine == "compiled":
            raise InputError(f"there is no compiled engine here ({reason}); give engine='torch'")
        return self.by_torch

    @functools.cached_property
    def by_torch(self) -> TorchEngine:
        """The torch engine, also for gradients of chosen rows and for curvature."""
        return TorchEngine(self.chain, self.kind, self._x, self._y, block=self._block)

    @property
    def chain(self) -> Chain:
        """The architecture, if it is a chain."""
        if not isinstance(self.model, Chain):
            raise InputError(f"{self.model} is not a chain of layers; see Chain.from_module")
        return self.model

    @property
    def engine(self) -> str:
        """The engine in use: ``compiled``, ``torch`` or ``torch.func``."""
        return self._engine.name

    @property
    def compiled(self) -> CompiledEngine | None:
        """The compiled engine, if it is in use."""
        return self._engine if isinstance(self._engine, CompiledEngine) else None

    @property
    def label(self) -> str:
        """Name of the loss in progress lines."""
        return self.kind.label

    @property
    def flops(self) -> float:
        """Approximate work of one pass over all samples for one trial."""
        model = self.model
        width = parameter_count(model) if isinstance(model, Chain) else model.count
        return 4.0 * self.samples * width

    def data_of(self, trial: int) -> tuple[Tensor, Tensor]:
        """Return the samples and targets of one trial, as a plain module and loss take them."""
        x = self._x[trial if len(self._x) > 1 else 0]
        y = self._y[trial if len(self._y) > 1 else 0]
        scalar = isinstance(self.model, Chain) and self.model.scalar
        return x, y.squeeze(-1) if scalar else y

    def moved(self, x: Tensor) -> Self:
        """Return the same objective on other samples of the same shape."""
        return type(self)(self.model, x, self.y, engine=self._engine_choice, block=self._block)

    def loss(self, stack: TrialStack) -> Tensor:
        """Return the loss ``[T]``."""
        return self._engine.loss(stack.values, self._index(stack))

    def loss_and_gradient(
        self, stack: TrialStack, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return loss ``[T]`` and gradient ``[T, P]``, of all samples or of rows ``[T, n]``."""
        index = self._index(stack)
        if rows is None:
            return self._engine.loss_and_gradient(stack.values, index)
        engine = self.by_torch if isinstance(self._engine, CompiledEngine) else self._engine
        return engine.loss_and_gradient(stack.values, index, rows)

    def check(self, stack: TrialStack) -> None:
        """Refuse trials of another architecture, dtype or number than the data are for."""
        dtype = self.x.dtype if self.x.dtype.is_floating_point else stack.values.dtype
        if stack.model != self.model or stack.values.dtype != dtype:
            what = "chain" if isinstance(self.model, Chain) else "module"
            raise InputError(
                f"trials of the {what} {stack.model} in {stack.values.dtype} for an objective of "
                f"the {what} {self.model} in {dtype}; make them equal"
            )
        if stack.index is None and self.trials not in (None, len(stack)):
            raise InputError(
                f"{len(stack)} trials, but data for {self.trials}; give data for each, or share it"
            )

    def _index(self, stack: TrialStack) -> Tensor:
        """Return which trials of the objective these are."""
        self.check(stack)
        return torch.arange(len(stack)) if stack.index is None else stack.index


class CrossEntropy(Objective):
    """``L_t = 1/N Σₙ (log Σₖ exp(f_t(xₙ)ₖ) - f_t(xₙ)_c)`` with c the class of sample n.

    Shapes: y ``[N]``, whole numbers from 0; the chain ends in one unit per class. For the other
    arguments see :class:`Objective`.

    >>> chain = Chain.parse("Linear(4), ReLU, Linear(3)", inputs=2)
    >>> trials = TrialStack(chain, torch.zeros(5, 27))
    >>> CrossEntropy(chain, torch.ones(6, 2), torch.arange(6) % 3).loss(trials)[0]  # log 3
    tensor(1.0986)
    """

    loss_name = "cross-entropy"


class MeanSquaredError(Objective):
    """``L_t = 1/(N K) Σₙₖ (f_t(xₙ)ₖ - yₙₖ)²``.

    Shapes: y ``[N, K]`` for K outputs, ``[N]`` for a chain with a ``Norm``. For the other
    arguments see :class:`Objective`.

    >>> chain = Chain.parse("Linear(4), ReLU, Norm", inputs=2)
    >>> trials = TrialStack(chain, torch.zeros(5, 12))
    >>> MeanSquaredError(chain, torch.ones(6, 2), torch.full((6,), 2.0)).loss(trials)
    tensor([4., 4., 4., 4., 4.])
    """

    loss_name = "mse"

    @functools.cached_property
    def has_curvature(self) -> bool:
        """Whether :meth:`curvature` works: one output per sample, shared data, only ``Linear``."""
        if not isinstance(self.model, Chain) or self.trials is not None:
            return False
        return self.model.scalar and not any(
            la.units and la.kind != "Linear" for la in self.model.layers
        )

    @property
    def has_exact_curvature(self) -> bool:
        """Whether the Hessian is written out for this chain: one ``Linear``, then a norm."""
        return self.has_curvature and self.by_torch.has_exact_curvature

    def curvature(
        self, stack: TrialStack, exact: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss ``[T]``, ``Jᵀr/N`` ``[T, P]`` and a curvature matrix ``[T, P, P]``.

        The matrix is ``JᵀJ/N``, or half the Hessian where ``exact`` ``[T]`` is true; see
        ``mahalens.train.engines.TorchEngine.curvature``.
        """
        if not self.has_curvature:
            raise InputError(
                f"no curvature for the chain {self.model}; it needs a Norm and no units but Linear"
            )
        if exact is not None and not self.has_exact_curvature:
            raise InputError(f"no exact curvature for the chain {self.model}; leave exact out")
        return self.by_torch.curvature(stack.values, exact)


OBJECTIVES: dict[str, type[Objective]] = {
    kind.loss_name: kind for kind in (MeanSquaredError, CrossEntropy)
}
