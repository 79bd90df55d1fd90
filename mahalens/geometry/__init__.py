"""Pure functions and value objects on tensors: Gaussians, whitening, covariance estimates.

=============================  ===============================================================
:class:`Gaussian`              mean and factor; distance, whitening, density, samples
:class:`Spectrum`              eigenvalues and eigenvectors of a covariance, from its factor
:data:`WhiteningKind`          ``"pca"``, ``"zca"`` or ``"cholesky"``
:func:`ledoit_wolf_shrinkage`  how far to shrink a sample covariance when samples are few
=============================  ===============================================================
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.geometry.covariance import ledoit_wolf_shrinkage
    from mahalens.geometry.gaussian import Gaussian
    from mahalens.geometry.whitening import Spectrum, WhiteningKind

__all__ = ["Gaussian", "Spectrum", "WhiteningKind", "ledoit_wolf_shrinkage"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Gaussian": "mahalens.geometry.gaussian",
        "Spectrum": "mahalens.geometry.whitening",
        "WhiteningKind": "mahalens.geometry.whitening",
        "ledoit_wolf_shrinkage": "mahalens.geometry.covariance",
    },
)
