"""Many trials at once: stacked models, solvers, states that can be saved."""

from mahalens.train.adam import Adam
from mahalens.train.drive import solve
from mahalens.train.lbfgs import LBFGS
from mahalens.train.levenberg import LevenbergMarquardt
from mahalens.train.newton import Newton
from mahalens.train.objective import MeanSquaredError
from mahalens.train.solver import CONVERGED, Solver, StackedSolver, Status
from mahalens.train.stack import TrialStack
from mahalens.train.whitened import WhitenedInputs

__all__ = [
    "CONVERGED",
    "LBFGS",
    "Adam",
    "LevenbergMarquardt",
    "MeanSquaredError",
    "Newton",
    "Solver",
    "StackedSolver",
    "Status",
    "TrialStack",
    "WhitenedInputs",
    "solve",
]
