"""Many trials at once: stacked models, solvers, states that can be saved."""

from mahalens.train.adam import Adam
from mahalens.train.batches import Batches
from mahalens.train.drive import solve
from mahalens.train.fit import fit
from mahalens.train.history import History
from mahalens.train.lbfgs import LBFGS
from mahalens.train.levenberg import LevenbergMarquardt
from mahalens.train.newton import Newton
from mahalens.train.objective import CrossEntropy, MeanSquaredError, Objective
from mahalens.train.sgd import SGD
from mahalens.train.solver import CONVERGED, Solver, StackedSolver, Status
from mahalens.train.stack import TrialStack, stack
from mahalens.train.template import Template
from mahalens.train.whitened import WhitenedInputs

__all__ = [
    "CONVERGED",
    "LBFGS",
    "SGD",
    "Adam",
    "Batches",
    "CrossEntropy",
    "History",
    "LevenbergMarquardt",
    "MeanSquaredError",
    "Newton",
    "Objective",
    "Solver",
    "StackedSolver",
    "Status",
    "Template",
    "TrialStack",
    "WhitenedInputs",
    "fit",
    "solve",
    "stack",
]
