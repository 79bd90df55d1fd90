"""Distances from N points to K ellipsoids, each with spreads of its own.

Where to look: ``base`` is what all kinds can do; ``full``, ``lowrank``, ``spheres`` and ``shared``
are the kinds. ``products`` makes the blocked matrix products, ``rows`` knows their rounding and
slopes. ``build`` makes ellipsoids from covariances and data (``assemble`` does it kind by kind,
``axes`` finds principal axes and chooses ranks), ``files`` keeps them.
"""

from mahalens.geometry.ellipsoids.axes import expected_error, top_eigenpairs
from mahalens.geometry.ellipsoids.base import Ellipsoids, Nearest
from mahalens.geometry.ellipsoids.build import (
    concatenate,
    from_clusters,
    from_covariance,
    from_data,
    truncate,
)
from mahalens.geometry.ellipsoids.files import load_ellipsoids
from mahalens.geometry.ellipsoids.full import FullEllipsoids
from mahalens.geometry.ellipsoids.lowrank import LowRankEllipsoids
from mahalens.geometry.ellipsoids.shared import SharedBasisEllipsoids
from mahalens.geometry.ellipsoids.spheres import DiagonalEllipsoids, SphericalEllipsoids
from mahalens.geometry.ellipsoids.tangent import Tangent

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
