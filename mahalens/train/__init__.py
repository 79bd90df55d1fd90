"""Many trials at once: stacked models, solvers, states that can be saved.

Where to look: ``fit`` is the one call; it makes an ``objective`` (architecture, data and one of
the ``losses``) and a solver, and lets ``drive`` run it. Trials are a ``stack``, whose rows a
``layout`` divides (or a ``template``, for modules that are no chains). Three engines give
gradients: ``compiled``; ``passes`` with its ``rules`` (torch); ``functional`` (torch.func).
Solvers: ``sgd`` and ``adam`` on ``descent``; ``newton``, which is ``levenberg`` with its
``curvature`` or ``lbfgs``, in ``whitened`` coordinates, and asks ``stationary`` where it ended.
"""

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
