"""Modules that measure distances, and architectures as data.

===============  ===============================================================================
``layers``       :class:`Abs`, :class:`Neg`, :class:`Norm`, :class:`AbsReLU`, :class:`PointSlope`;
                 :class:`OffsetL2`: distances to prototypes
``mahalanobis``  :class:`Mahalanobis`: distances to classes, in units of their spreads
``head``         :class:`DistanceHead` and its :class:`Prediction`: classify by distance, or reject
``chain``        :class:`Chain` and :class:`Layer`: an architecture as data; :func:`md_abs`,
                 :func:`md_relu`, :func:`md_sigmoid`, :func:`mahalanobis_model`
``penalties``    :func:`orthogonality_penalty`, :func:`volume_penalty`,
                 :func:`compactness_penalty`: terms to add to a loss
===============  ===============================================================================

Each name loads its module on first use: chains need no torch until one is built.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
