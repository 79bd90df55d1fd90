"""scikit-learn estimators by Mahalanobis distance, for pipelines, grid search and ``clone``.

===============  ===============================================================================
``classifier``   :class:`MahalanobisClassifier`: the class whose Gaussian fits a sample best
``outliers``     :class:`MahalanobisOutliers`: samples unlike the known ones, at a stated rate
``metric``       :class:`MahalanobisMetric`: Euclidean distances become Mahalanobis distances
``mixture``      :class:`MahalanobisMixture`: a mixture of Gaussians, also of low rank
===============  ===============================================================================

They need scikit-learn 1.6 or newer: ``pip install 'mahalens[sklearn]'``. All of them compute in
float64 on the CPU and take what scikit-learn takes: arrays, lists, data frames. By default they
work with fewer samples than inputs (the mixture needs a ``ridge``), and units do not matter.
"""

import lazy_loader as _lazy

from mahalens.errors import require_extra

require_extra("sklearn", "mahalens.estimators", "sklearn")
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
