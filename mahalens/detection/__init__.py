"""Knowing what a network does not know: detectors with a threshold that keeps its promise.

===============  ===============================================================================
``base``         :class:`Detector`, the base of all, and its :class:`Explanation`
``distances``    :class:`Mahalanobis`, :class:`Relative`, :class:`MahaVar`, :class:`Marginal`,
                 :class:`ClassGaussians`, :class:`LowRank`: distances in units of spread;
                 :class:`Neighbours`: distance to the nearest known samples
``logits``       :class:`Energy`, :class:`MaxSoftmax`, :class:`MaxLogit`, :class:`GEN`,
                 :class:`ViM`: what a classifier's logits say
``layered``      :class:`Combined`, :class:`Layered`: several detectors or layers as one;
                 judging detectors by known samples alone
``choose``       :func:`detect`, :func:`detect_features`: the best method for some known samples
``record``       a detector tried on a user's data
``known``        known samples, gathered in one pass with bounded memory
``features``     features and logits of a model's samples
``metrics``      AUROC and its relatives, with intervals and paired tests
``threshold``    :class:`Calibration`: p-values and thresholds that keep a stated rate
===============  ===============================================================================
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
