"""The converging solver: second order, in sample-whitened coordinates."""

from __future__ import annotations

from torch import Tensor

from mahalens.errors import InputError
from mahalens.nn.chain import Chain
from mahalens.train.lbfgs import LBFGS
from mahalens.train.levenberg import LevenbergMarquardt
from mahalens.train.objective import MeanSquaredError
from mahalens.train.solver import StackedSolver, Status
from mahalens.train.stack import TrialStack, parameter_count
from mahalens.train.whitened import WhitenedInputs

FEW_PARAMETERS = 600
"""Up to here a P x P matrix per trial is cheap, and Levenberg-Marquardt is the faster method."""


class Newton:
    """Trains trials from the same starting points as :class:`Adam`, but until they converge.

    Levenberg-Marquardt where a trial has few parameters, L-BFGS where it has many, both on inputs
    whitened by their own sample covariance. Weights go in and come out in the coordinates of x.

    Shapes: x ``[N, D]``, y ``[N]``.
    """

    def __init__(self, chain: Chain, x: Tensor, y: Tensor, start: TrialStack, steps: int) -> None:
        if not x.dtype == y.dtype == start.values.dtype:
            raise InputError(
                f"x in {x.dtype}, y in {y.dtype}, trials in {start.values.dtype}; make them equal"
            )
        self._coordinates = WhitenedInputs(x)
        self._original = MeanSquaredError(chain, x, y)
        objective = MeanSquaredError(chain, self._coordinates.inputs(x), y)
        begin = self._coordinates.enter(start)
        self._solver: StackedSolver
        if parameter_count(chain) <= FEW_PARAMETERS:
            self.method = "levenberg-marquardt"
            self._solver = LevenbergMarquardt(objective, begin, steps)
        else:
            self.method = "l-bfgs"
            self._solver = LBFGS(objective, begin, steps)

    @property
    def stack(self) -> TrialStack:
        """The trials in the coordinates of x."""
        return self._coordinates.leave(self._solver.stack)

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
        return done, total, f"step {self._solver.epoch}, MSE {self._solver.recent_loss():.3g}"

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
