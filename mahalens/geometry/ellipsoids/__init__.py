"""Distances from N points to K ellipsoids: Mahalanobis distances to many Gaussians at once.

``base`` has what all kinds can do and ``kinds`` the kinds; ``products`` makes the blocked matrix
products that both rest on; ``fit`` makes ellipsoids from covariances, data and clusters.

>>> import torch
>>> from mahalens.geometry import ellipsoids
>>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [5.0, 5.0], [5.0, 7.0], [8.0, 5.0]])
>>> fitted = ellipsoids.from_data(x, torch.tensor([0, 0, 0, 1, 1, 1]))
>>> fitted.distances(torch.tensor([[2.0, 0.0], [9.0, 9.0]]))
tensor([[ 1.1547,  7.3711],
        [14.4338,  4.6667]])
"""

from mahalens.geometry.ellipsoids.base import Ellipsoids, Nearest
from mahalens.geometry.ellipsoids.fit import (
    concatenate,
    expected_error,
    from_clusters,
    from_covariance,
    from_data,
    top_eigenpairs,
    truncate,
)
from mahalens.geometry.ellipsoids.kinds import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
    load_ellipsoids,
)
from mahalens.geometry.ellipsoids.products import Tangent

__all__ = [
    "DiagonalEllipsoids",
    "Ellipsoids",
    "FullEllipsoids",
    "LowRankEllipsoids",
    "Nearest",
    "SharedBasisEllipsoids",
    "SphericalEllipsoids",
    "Tangent",
    "concatenate",
    "expected_error",
    "from_clusters",
    "from_covariance",
    "from_data",
    "load_ellipsoids",
    "top_eigenpairs",
    "truncate",
]
