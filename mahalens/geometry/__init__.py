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

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
