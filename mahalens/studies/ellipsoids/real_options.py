"""What is measured on a labelled data set: options, names of models, names of figures.

Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from mahalens.errors import InputError

METRICS = (
    "error_distance",
    "error_density",
    "distance_error",
    "fit_seconds",
    "score_seconds",
    "parameters",
)
"""The keys of what a trial measures of a model."""

DEFAULT_RANKS = (1, 2, 4, 8, 16, 32)
DEFAULT_CLUSTERS = (2, 4)
DEFAULT_SHRINKAGE = 0.1
SHARED_FROM = 4
"""A basis for all classes is tried from this rank on: with fewer directions it tells too little."""
TRAINING_SHARE = 0.8


@dataclass(frozen=True)
class RealOptions:
    """How the classes of a data set are fitted.

    ``shrinkage`` (from 0 to below 1) is that of ``ellipsoids.from_data``, the same for all models.

    >>> RealOptions(ranks=(1, 0))
    Traceback (most recent call last):
    mahalens.errors.InputError: ranks are (1, 0), wanted different whole numbers of at least 1
    """

    ranks: tuple[int, ...] = DEFAULT_RANKS
    clusters: tuple[int, ...] = DEFAULT_CLUSTERS
    """Clusters per class, one model for each number; empty for none."""
    train_size: int | None = None
    """Samples of a trial's training set; None: 80 % of what there is."""
    shrinkage: float = DEFAULT_SHRINKAGE
    seed: int = 0
    rivals: bool = True
    """Whether scikit-learn's models are measured too."""

    def __post_init__(self) -> None:
        if not self.ranks:
            raise InputError("ranks are empty, wanted at least one, such as 8")
        for name in ("ranks", "clusters"):
            given = getattr(self, name)
            if min(given, default=1) < 1 or len(set(given)) < len(given):
                raise InputError(
                    f"{name} are {given}, wanted different whole numbers of at least 1"
                )
        if self.train_size is not None and self.train_size < 1:
            raise InputError(f"train_size is {self.train_size}, wanted at least 1 or None")
        if not 0 <= self.shrinkage < 1:
            raise InputError(
                f"shrinkage is {self.shrinkage}, wanted a number from 0 to below 1, such as "
                f"{DEFAULT_SHRINKAGE}"
            )
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}, wanted a whole number of at least 0")


def model_names(options: RealOptions, classes: int) -> list[str]:
    """Name all models of a run, in the order they are shown.

    ================  =========================================================================
    ``full``          one ellipsoid per class, with all of its covariance
    ``diagonal``      with a spread along every input
    ``spherical``     with one spread
    ``rank-R``        its R longest axes, and the mean variance of all other directions
    ``truncated-R``   its R longest axes alone: distances, but no density
    ``shared-R``      R directions for all classes, from R = 4 on and for two classes or more
    ``clusters-M``    M clusters per class by k-means, each with an ellipsoid of low rank
    ``qda``           scikit-learn's QuadraticDiscriminantAnalysis
    ``mixture-M``     scikit-learn's GaussianMixture of M full components per class
    ================  =========================================================================

    >>> model_names(RealOptions(ranks=(2, 8), clusters=(3,), rivals=False), classes=10)[3:]
    ['rank-2', 'rank-8', 'truncated-2', 'truncated-8', 'shared-8', 'clusters-3']
    """
    names = ["full", "diagonal", "spherical"]
    names += [f"rank-{rank}" for rank in options.ranks]
    names += [f"truncated-{rank}" for rank in options.ranks]
    if classes > 1:  # the basis of a single class is its own: rank-R by another name
        names += [f"shared-{rank}" for rank in options.ranks if rank >= SHARED_FROM]
    names += [f"clusters-{count}" for count in options.clusters]
    if options.rivals:
        if classes > 1:  # which QDA insists on
            names.append("qda")
        names += [f"mixture-{count}" for count in options.clusters]
    return names
