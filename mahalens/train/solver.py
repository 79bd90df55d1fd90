"""What all solvers share: trials that drop out, curves, states that can be saved and restored."""

from __future__ import annotations

import abc
import enum
from typing import Protocol

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.train.history import History
from mahalens.train.objective import Objective
from mahalens.train.stack import TrialStack


class Status(enum.Enum):
    """How a trial ended. The value is the word that run folders and reports use."""

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


class Solver(Protocol):
    """Anything :func:`mahalens.train.solve` can drive to its end, with pauses in between."""

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
        """Everything needed to go on later, bit for bit."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""

    @property
    def progress(self) -> tuple[int, int, str]:
        """How much is done, of how much, and a word on where it stands."""


class StackedSolver(abc.ABC):
    """Base of the solvers: keeps the rows of the running trials together.

    ``rows`` holds one tensor ``[A, ...]`` per quantity for the A trials still running; ``active``
    says which they are. A trial that ends is written to ``values`` and leaves ``rows``, so the
    rest goes on without it.
    """

    def __init__(self, objective: Objective, start: TrialStack, limit: int) -> None:
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

    def until_milestone(self, most: int) -> int:
        """How many epochs to go on: at most ``most``, and not past a milestone or the end."""
        ahead = [stop - self.epoch for stop in (*self.milestones, self.limit) if stop > self.epoch]
        return min(most, *ahead)

    @property
    def progress(self) -> tuple[int, int, str]:
        """Epochs done, of all, and the median loss."""
        return self.epoch, self.limit, f"{self.objective.label} {self.recent_loss():.3g}"

    def recent_loss(self) -> float:
        """Median of the newest point of the curve over the running trials."""
        if not self._curve_losses:
            return float("nan")
        return float(self._curve_losses[-1].nanmedian())

    def running(self) -> TrialStack:
        """The running trials as a stack."""
        return TrialStack(self.objective.model, self.rows["values"], index=self.active)

    @abc.abstractmethod
    def advance(self) -> None:
        """Do the next piece of work with every running trial."""

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

    @property
    def scale(self) -> Tensor:
        """What a loss is compared with: the mean square of the targets, or 1 if they are labels."""
        y = self.objective.y
        mean: Tensor = y.square().mean() if y.dtype.is_floating_point else self.values.new_ones(())
        return mean

    def is_zero(self, loss: Tensor) -> Tensor:
        """Whether the residual is below √eps of the target: the fit is perfect but for rounding."""
        return loss <= torch.finfo(loss.dtype).eps * self.scale

    def is_stationary(self, loss: Tensor, slope: Tensor) -> Tensor:
        """Whether ``Jᵀr/N`` ``[A, P]`` is 0 within √eps of the residual.

        In whitened coordinates the columns of J have lengths of at most about √N, so this bounds
        the cosine between the residual and what any parameter could change in it.
        """
        tolerance: Tensor = torch.finfo(loss.dtype).eps ** 0.5 * loss.sqrt()
        return slope.abs().amax(1) <= tolerance

    def finish_first(self, verdicts: list[tuple[Tensor, Status]], loss: Tensor) -> None:
        """End each running trial by the first of the verdicts ``[A]`` that is true for it.

        At the limit, whoever still runs ends too.
        """
        if self.epoch == self.limit:
            zero = self.is_zero(loss)
            verdicts = [*verdicts, (zero, Status.ZERO_RESIDUAL), (~zero, Status.UNCONVERGED)]
        verdict = torch.full((len(self.active),), Status.RUNNING.code)
        for holds, status in reversed(verdicts):
            verdict[holds.cpu()] = status.code
        for status in Status:
            if status is not Status.RUNNING:
                ended = verdict == status.code
                self.finish(ended, status, loss, self.epoch)
                loss, verdict = loss[~ended.to(loss.device)], verdict[~ended]

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on later, bit for bit."""
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
        return _copies(state)  # the solver goes on writing into its own

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
        names = {name for name in state if name.startswith("rows.")}
        if names != {f"rows.{name}" for name in self.rows}:
            raise InputError(f"a saved state with {sorted(names)}, which is another solver's")
        state = _copies(state)
        self.epoch = int(state["epoch"])
        self.seconds = float(state["seconds"])
        self.active, self.codes, self.steps = state["active"], state["codes"], state["steps"]
        self.values = state["values"].to(device)
        self.final_loss = state["final_loss"].to(device)
        self.rows = {
            name.removeprefix("rows."): row.to(device)
            for name, row in state.items()
            if name.startswith("rows.")
        }
        self._curve_epochs = state["curve.epochs"].tolist()
        self._curve_losses = list(state["curve.losses"].to(device))
        self.history.restore(state)


def _copies(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
