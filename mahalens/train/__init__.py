"""Many trials at once: stacked models, solvers, states that can be saved.

:func:`fit` is the one call. It makes an objective (architecture, data and loss) and a solver, and
lets :func:`solve` drive it. Modules, from the bottom up:

=================  ============================================================================
``layers``         where each layer's parameters are in a trial's row, its output and gradient
``engines``        losses, and the torch engines: written-out gradients, and ``torch.func``
``compiled``       the compiled engine
``stack``          trials as one matrix: :class:`TrialStack`, :func:`stack`, :class:`Template`
``objective``      a loss on a data set: :class:`MeanSquaredError`, :class:`CrossEntropy`
``solver``         statuses, curves and checkpoints of all solvers, :func:`solve`
``descent``        :class:`SGD`, :class:`Adam` and their :class:`Batches`
``second_order``   :class:`Newton`, which is :class:`LevenbergMarquardt` or :class:`LBFGS`
``stationary``     minimum or saddle? The curvature where the gradient is 0
=================  ============================================================================
"""

from mahalens.train.descent import SGD, Adam, Batches, Descent
from mahalens.train.fit import fit
from mahalens.train.objective import CrossEntropy, MeanSquaredError, Objective
from mahalens.train.second_order import LBFGS, LevenbergMarquardt, Newton, WhitenedInputs
from mahalens.train.solver import CONVERGED, History, Solver, StackedSolver, Status, solve
from mahalens.train.stack import Template, TrialStack, stack

__all__ = [
    "CONVERGED",
    "LBFGS",
    "SGD",
    "Adam",
    "Batches",
    "CrossEntropy",
    "Descent",
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
