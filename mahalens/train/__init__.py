"""Many trials at once."""

from mahalens.train.adam import Adam
from mahalens.train.lbfgs import LBFGS
from mahalens.train.levenberg import LevenbergMarquardt
from mahalens.train.objective import MeanSquaredError
from mahalens.train.solver import CONVERGED, Status
from mahalens.train.stack import TrialStack
from mahalens.train.whitened import WhitenedInputs

__all__ = [
    "CONVERGED",
    "LBFGS",
    "Adam",
    "LevenbergMarquardt",
    "MeanSquaredError",
    "Status",
    "TrialStack",
    "WhitenedInputs",
]
