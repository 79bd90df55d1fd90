"""Base of the solvers: trials that drop out, curves, saved states, and the driving loop."""

from __future__ import annotations

import abc
import enum
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from mahalens._show import cut, table_html
from mahalens.errors import InputError, Interrupted
from mahalens.train.objective import Objective
from mahalens.train.stack import TrialStack

SAVE_EVERY = 20.0
"""Seconds between saved states: about the most work that a killed process loses."""


class Status(enum.Enum):
    """The end of a trial. The value is the word that run folders and reports use.

    ``RUNNING``, ``DONE`` (all epochs), ``REACHED`` (the target loss) and ``PLATEAU`` are those of
    SGD and Adam. Newton's solvers end with ``ZERO_RESIDUAL``, ``LOCAL_MINIMUM`` or ``SADDLE`` where
    the gradient vanishes, ``STALLED`` where no step helps, and ``UNCONVERGED`` at the limit of
    steps. ``NON_FINITE``: the loss overflowed or became NaN.
    """

    RUNNING = "running"
    DONE = "done"
    REACHED = "target reached"
    PLATEAU = "no more progress"
    ZERO_RESIDUAL = "zero residual"
    LOCAL_MINIMUM = "local minimum"
    SADDLE = "saddle point"
    STALLED = "stalled"
    UNCONVERGED = "not converged"
    NON_FINITE = "non-finite"

    @property
    def code(self) -> int:
        """Number under which a checkpoint stores the status."""
        return list(Status).index(self)


CONVERGED = (Status.ZERO_RESIDUAL, Status.LOCAL_MINIMUM, Status.SADDLE)
"""Statuses that mean: the gradient has vanished, more steps would change nothing."""


class History:
    """Metrics of all trials at chosen epochs.

    ``history["accuracy"]`` is ``[E, T]`` for the epochs ``history.epochs`` ``[E]``.

    >>> history = History()
    >>> history.add(10, {"accuracy": torch.tensor([0.5, 0.25])}, trials=2)
    >>> history["accuracy"].tolist()
    [[0.5, 0.25]]
    """

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._records: dict[str, list[Tensor]] = {}

    def add(self, epoch: int, metrics: Mapping[str, Tensor] | None, trials: int) -> None:
        """Add one epoch: a number per trial ``[T]`` for every metric, the same ones every time."""
        metrics = {} if metrics is None else metrics
        if self._epochs and set(metrics) != set(self._records):
            raise InputError(
                f"metrics {sorted(metrics)} at epoch {epoch}, but {sorted(self._records)} before; "
                "return the same ones every time"
            )
        for name, tensor in metrics.items():
            if not isinstance(tensor, Tensor) or tuple(tensor.shape) != (trials,):
                raise InputError(f"metric {name!r}: give a tensor with one number per trial")
            self._records.setdefault(name, []).append(tensor.detach().cpu().clone())
        self._epochs.append(epoch)

    @property
    def epochs(self) -> Tensor:
        """The epochs ``[E]``."""
        return torch.tensor(self._epochs, dtype=torch.int64)

    @property
    def names(self) -> list[str]:
        """The metrics."""
        return list(self._records)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._epochs

    def __getitem__(self, name: str) -> Tensor:
        return torch.stack(self._records[name])

    def state(self) -> dict[str, Tensor]:
        """Return everything in it, as tensors for a checkpoint."""
        metrics = {f"history.of.{name}": self[name] for name in self._records}
        return {"history.epochs": self.epochs, **metrics}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a saved state."""
        self._epochs = state["history.epochs"].tolist()
        self._records = {
            name.removeprefix("history.of."): list(tensor.clone())
            for name, tensor in state.items()
            if name.startswith("history.of.")
        }


class Solver(Protocol):
    """Anything :func:`mahalens.train.solve` can drive to its end, with pauses in between.

    A protocol: :class:`SGD`, :class:`Adam`, :class:`LBFGS`, :class:`LevenbergMarquardt` and
    :class:`Newton` follow it.
    """

    seconds: float
    milestones: tuple[int, ...]
    """Epochs at which :meth:`advance` pauses, for metrics."""

    @property
    def epoch(self) -> int:
        """Epochs or steps done."""

    @property
    def stack(self) -> TrialStack:
        """The trials as they are now."""

    @property
    def history(self) -> History:
        """Metrics recorded so far."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""

    def advance(self) -> None:
        """Do the next piece of work, about a second at most where steps are that short."""

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to resume later, bit for bit."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""

    @property
    def progress(self) -> tuple[int, int, str]:
        """Work done, total work and a status text."""


AnySolver = TypeVar("AnySolver", bound=Solver)
Metrics = Callable[[AnySolver], Mapping[str, Tensor] | None]


def solve(
    solver: AnySolver,
    *,
    metrics: Metrics[AnySolver] | None = None,
    at: Iterable[int] = (),
    save: Callable[[dict[str, Tensor]], None] | None = None,
    every: float | None = None,
    on_progress: Callable[[AnySolver], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Advance ``solver`` until it is finished.

    ``metrics`` is called with the solver at the epochs ``at`` (0: before training) and at the end.
    It returns a number per trial ``[T]`` for each name, which ``solver.history`` records. Between
    these epochs nothing is called at all: metrics cost only their computation.

    ``save`` receives the solver's state every ``every`` seconds (by default :data:`SAVE_EVERY`), at
    the end, and when ``should_stop`` returns true, after which
    :class:`mahalens.errors.Interrupted` is raised. A solver restored from any such state ends with
    the very same numbers.
    """
    every = SAVE_EVERY if every is None else every
    saved = time.monotonic()
    epochs = tuple(sorted(set(at)))
    if epochs and epochs[0] < 0:
        raise InputError(f"metrics at epoch {epochs[0]}; give epochs of at least 0")

    def measure() -> None:
        # Once per epoch, also for a solver that was restored at this very epoch.
        if metrics is None or solver.epoch in solver.history:
            return
        if solver.finished or solver.epoch in epochs:
            solver.history.add(solver.epoch, metrics(solver), len(solver.stack))

    if metrics is not None:
        solver.milestones = epochs
    while not solver.finished:
        measure()
        began = time.monotonic()
        solver.advance()
        now = time.monotonic()
        solver.seconds += now - began
        measure()
        if on_progress is not None:
            on_progress(solver)
        stopping = should_stop is not None and should_stop() and not solver.finished
        if save is not None and (stopping or solver.finished or now - saved >= every):
            save(solver.state())
            saved = now
        if stopping:
            raise Interrupted("stopped by the user")


class ShownSolver:
    """Base of what :func:`mahalens.fit` returns: shows how its trials ended."""

    def __repr__(self: Any) -> str:
        model = cut(self.objective.model, 70)
        return f"{type(self).__name__}({model}: {self.epoch} epochs, {self._endings()})"

    def _repr_html_(self: Any) -> str:
        """Return a row for each trial: status, steps and final loss."""
        words = [status.value for status in self.statuses]
        columns = (words, self.steps.tolist(), self.final_loss.tolist())
        rows = [(trial, *cells) for trial, cells in enumerate(zip(*columns, strict=True))]
        heads = ("trial", "status", "steps", f"final {self.objective.label}")
        caption = f"{type(self).__name__} on {self.objective.model}: {self._endings()}"
        return table_html(caption, heads, rows)

    def _endings(self: Any) -> str:
        words = [status.value for status in self.statuses]
        return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


class StackedSolver(ShownSolver, abc.ABC):
    """Base of the solvers: holds the rows of the running trials together.

    ``rows`` holds one tensor ``[A, ...]`` per quantity for the A trials still running; ``active``
    lists which they are. A trial that ends is written to ``values`` and leaves ``rows``; the others
    go on without it.
    """

    def __init__(self, objective: Objective, start: TrialStack, limit: int) -> None:
        limit = whole("epochs", limit)
        if limit < 1:
            raise InputError(f"{limit} epochs; give at least 1")
        if not len(start):
            raise InputError("no trials; give at least 1")
        objective.check(start)
        self.objective = objective
        self.limit = limit
        self.epoch = 0
        self.seconds = 0.0
        self.values = start.values.clone()
        trials = len(start)
        self.final_loss = start.values.new_full((trials,), torch.nan)
        self.codes = torch.full((trials,), Status.RUNNING.code)
        self.steps = torch.zeros(trials, dtype=torch.int64)
        self.active = torch.arange(trials)
        rows = start.values.clone(memory_format=torch.contiguous_format)
        self.rows: dict[str, Tensor] = {"values": rows}
        self.history = History()
        self.milestones: tuple[int, ...] = ()
        self._curve_epochs: list[int] = []
        self._curve_losses: list[Tensor] = []

    @abc.abstractmethod
    def advance(self) -> None:
        """Do the next piece of work with every running trial."""

    @property
    def finished(self) -> bool:
        """Whether no trial is running."""
        return not len(self.active)

    @property
    def stack(self) -> TrialStack:
        """The trials as they are now, ended or not."""
        values = self.values.clone()
        values[self.active] = self.rows["values"]
        return TrialStack(self.objective.model, values)

    def running(self) -> TrialStack:
        """Return the running trials as a stack."""
        return TrialStack(self.objective.model, self.rows["values"], index=self.active)

    @property
    def statuses(self) -> list[Status]:
        """How each trial ended."""
        every = list(Status)
        return [every[code] for code in self.codes.tolist()]

    @property
    def curve(self) -> tuple[Tensor, Tensor]:
        """Epochs ``[E]`` and losses ``[E, T]``, NaN where a trial was no longer running."""
        if not self._curve_epochs:
            return torch.empty(0, dtype=torch.int64), self.values.new_empty(0, len(self.values))
        return torch.tensor(self._curve_epochs), torch.stack(self._curve_losses)

    @property
    def progress(self) -> tuple[int, int, str]:
        """Epochs done, epochs in all, and the median loss."""
        return self.epoch, self.limit, f"{self.objective.label} {self.recent_loss():.3g}"

    def recent_loss(self) -> float:
        """Return the median of the newest point of the curve over the running trials."""
        if not self._curve_losses:
            return float("nan")
        return float(self._curve_losses[-1].nanmedian())

    def until_milestone(self, most: int) -> int:
        """Return how many epochs to do: at most ``most``, not past a milestone or the end."""
        ahead = [stop - self.epoch for stop in (*self.milestones, self.limit) if stop > self.epoch]
        return min(most, *ahead)

    def record(self, epoch: int, loss: Tensor) -> None:
        """Add a point to the curve: the loss ``[A]`` of the running trials."""
        full = self.values.new_full((len(self.values),), torch.nan)
        full[self.active] = loss
        self._curve_epochs.append(epoch)
        self._curve_losses.append(full)

    def finish(self, ended: Tensor, status: Status, loss: Tensor, steps: Tensor | int) -> None:
        """End the running trials where ``ended`` ``[A]`` is true; the rest keep their order."""
        if not bool(ended.any()):
            return
        ended = ended.to("cpu")
        index = self.active[ended]
        self.values[index] = self.rows["values"][ended]
        self.final_loss[index] = loss[ended]
        self.codes[index] = status.code
        self.steps[index] = steps if isinstance(steps, int) else steps[ended].cpu()
        self.active = self.active[~ended]
        self.rows = {name: row[~ended] for name, row in self.rows.items()}

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to resume later, bit for bit."""
        epochs, losses = self.curve
        state = {f"rows.{name}": row for name, row in self.rows.items()}
        state |= {
            "epoch": torch.tensor(self.epoch),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
            "active": self.active,
            "values": self.values,
            "final_loss": self.final_loss,
            "codes": self.codes,
            "steps": self.steps,
            "curve.epochs": epochs,
            "curve.losses": losses,
            **self.history.state(),
        }
        return _copies(state)  # the solver goes on writing into the originals

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        device = self.values.device
        if state["values"].shape != self.values.shape or state["values"].dtype != self.values.dtype:
            raise InputError(
                f"a saved state of shape {tuple(state['values'].shape)} and {state['values'].dtype}"
                f" for a solver of shape {tuple(self.values.shape)} and {self.values.dtype}"
            )
        if int(state["epoch"]) > self.limit:
            raise InputError(f"a saved state of epoch {int(state['epoch'])} of only {self.limit}")
        state = _copies(state)
        rows = {n.removeprefix("rows."): t for n, t in state.items() if n.startswith("rows.")}
        if rows.keys() != self.rows.keys():
            raise InputError(f"a saved state with {sorted(rows)}, which is another solver's")
        self.epoch = int(state["epoch"])
        self.seconds = float(state["seconds"])
        self.active, self.codes, self.steps = state["active"], state["codes"], state["steps"]
        self.values = state["values"].to(device)
        self.final_loss = state["final_loss"].to(device)
        self.rows = {name: row.to(device) for name, row in rows.items()}
        self._curve_epochs = state["curve.epochs"].tolist()
        self._curve_losses = list(state["curve.losses"].to(device))
        self.history.restore(state)


def whole(what: str, value: Any) -> int:
    """Return a whole number, also one of NumPy or torch, or raise."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what}: {value!r} is not a whole number; give one") from None


def real(what: str, value: Any) -> float:
    """Return a number as a float, or raise."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{what}: {value!r} is not a number; give one")


def _copies(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
