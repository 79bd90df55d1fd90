"""Pure functions and value objects on tensors: Gaussians, whitening, ellipsoids, distances.

=============================  ===============================================================
:class:`Gaussian`              mean and factor; distance, whitening, density, samples
:class:`Spectrum`              eigenvalues and eigenvectors of a covariance, from its factor
:data:`WhiteningKind`          ``"pca"``, ``"zca"`` or ``"cholesky"``
:func:`ledoit_wolf_shrinkage`  how far to shrink a sample covariance when samples are few
:class:`Ellipsoids`            K of them as one object, of five kinds; made by :mod:`.ellipsoids`
:func:`reconstruct`            points from their distances to ellipsoids
=============================  ===============================================================
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.geometry.covariance import ledoit_wolf_shrinkage
    from mahalens.geometry.ellipsoids import (
        DiagonalEllipsoids,
        Ellipsoids,
        FullEllipsoids,
        LowRankEllipsoids,
        SharedBasisEllipsoids,
        SphericalEllipsoids,
        load_ellipsoids,
    )
    from mahalens.geometry.gaussian import Gaussian
    from mahalens.geometry.reconstruction import Reconstruction, reconstruct
    from mahalens.geometry.whitening import Spectrum, WhiteningKind

__all__ = [
    "DiagonalEllipsoids",
    "Ellipsoids",
    "FullEllipsoids",
    "Gaussian",
    "LowRankEllipsoids",
    "Reconstruction",
    "SharedBasisEllipsoids",
    "Spectrum",
    "SphericalEllipsoids",
    "WhiteningKind",
    "ledoit_wolf_shrinkage",
    "load_ellipsoids",
    "reconstruct",
]

_ELLIPSOIDS = "mahalens.geometry.ellipsoids"

__getattr__, __dir__ = attach(
    __name__,
    {
        "Gaussian": "mahalens.geometry.gaussian",
        "Spectrum": "mahalens.geometry.whitening",
        "WhiteningKind": "mahalens.geometry.whitening",
        "ledoit_wolf_shrinkage": "mahalens.geometry.covariance",
        "Ellipsoids": _ELLIPSOIDS,
        "FullEllipsoids": _ELLIPSOIDS,
        "LowRankEllipsoids": _ELLIPSOIDS,
        "DiagonalEllipsoids": _ELLIPSOIDS,
        "SphericalEllipsoids": _ELLIPSOIDS,
        "SharedBasisEllipsoids": _ELLIPSOIDS,
        "load_ellipsoids": _ELLIPSOIDS,
        "Reconstruction": "mahalens.geometry.reconstruction",
        "reconstruct": "mahalens.geometry.reconstruction",
    },
)
