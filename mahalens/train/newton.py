"""The converging solver: second order, in sample-whitened coordinates."""

from __future__ import annotations

from torch import Tensor

from mahalens.nn.chain import Chain
from mahalens.train.history import History
from mahalens.train.lbfgs import LBFGS
from mahalens.train.levenberg import LevenbergMarquardt
from mahalens.train.objective import MeanSquaredError, Objective
from mahalens.train.solver import StackedSolver, Status
from mahalens.train.stack import TrialStack
from mahalens.train.whitened import WhitenedInputs

FEW_PARAMETERS = 600
"""Up to here a P x P matrix per trial is cheap, and Levenberg-Marquardt is the faster method."""


class Newton:
    """Trains trials from the same starting points as :class:`Adam`, but until they converge.

    Levenberg-Marquardt where a trial has few parameters and a squared error of one number per
    sample, L-BFGS elsewhere. A chain that begins with a ``Linear`` on shared samples is trained on
    inputs whitened by their own sample covariance; weights go in and come out in the coordinates
    of x. Full batch only: a curvature estimated from a few samples does not converge.
    """

    def __init__(self, objective: Objective, start: TrialStack, steps: int) -> None:
        self._original = objective
        self._coordinates: WhitenedInputs | None = None
        inside, begin = objective, start
        model = objective.model
        objective.check(start)
        shared = objective.trials is None
        if shared and isinstance(model, Chain) and WhitenedInputs.fit(model):
            samples = objective.data_of(0)[0]
            self._coordinates = WhitenedInputs(samples, centred=model.layers[0].bias)
            inside = objective.moved(self._coordinates.inputs(samples))
            begin = self._coordinates.enter(start)
        self._solver: StackedSolver
        few = start.values.shape[1] <= FEW_PARAMETERS
        if few and isinstance(inside, MeanSquaredError) and inside.has_curvature:
            self.method = "levenberg-marquardt"
            self._solver = LevenbergMarquardt(inside, begin, steps)
        else:
            self.method = "l-bfgs"
            self._solver = LBFGS(inside, begin, steps)

    @property
    def objective(self) -> Objective:
        """What is trained for, in the coordinates of x."""
        return self._original

    @property
    def stack(self) -> TrialStack:
        """The trials in the coordinates of x."""
        inside = self._solver.stack
        return inside if self._coordinates is None else self._coordinates.leave(inside)

    @property
    def epoch(self) -> int:
        """Steps done."""
        return self._solver.epoch

    @property
    def history(self) -> History:
        """Metrics recorded so far."""
        return self._solver.history

    @property
    def milestones(self) -> tuple[int, ...]:
        """Steps at which metrics are wanted; every step is a pause anyway."""
        return self._solver.milestones

    @milestones.setter
    def milestones(self, value: tuple[int, ...]) -> None:
        self._solver.milestones = value

    @property
    def final_loss(self) -> Tensor:
        """Loss ``[T]`` of the weights of :attr:`stack`, the rounding of the way back included."""
        return self._original.loss(self.stack)

    @property
    def finished(self) -> bool:
        """Whether no trial is running."""
        return self._solver.finished

    @property
    def statuses(self) -> list[Status]:
        """How each trial ended."""
        return self._solver.statuses

    @property
    def steps(self) -> Tensor:
        """Steps ``[T]`` each trial took."""
        return self._solver.steps

    @property
    def curve(self) -> tuple[Tensor, Tensor]:
        """Steps ``[E]`` and losses ``[E, T]``."""
        return self._solver.curve

    @property
    def progress(self) -> tuple[int, int, str]:
        """Trials that have ended, of all, and what the others are at."""
        done, total = len(self._solver.codes) - len(self._solver.active), len(self._solver.codes)
        return (
            done,
            total,
            f"step {self.epoch}, {self.objective.label} {self._solver.recent_loss():.3g}",
        )

    @property
    def seconds(self) -> float:
        """Time spent so far."""
        return self._solver.seconds

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._solver.seconds = value

    def advance(self) -> None:
        """Take one step with every running trial."""
        self._solver.advance()

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on later, bit for bit."""
        return self._solver.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        self._solver.restore(state)
