"""Many trials at once: stacked models, solvers, states that can be saved.

:func:`fit` is the one call. It makes an objective (architecture, data and loss) and a solver, and
lets :func:`solve` drive it. Modules, from the bottom up:

=================  ============================================================================
``layers``         where each layer's parameters are in a trial's row, its output and gradient
``engines``        losses, and the torch engines: written-out gradients, and ``torch.func``
``compiled``       the compiled engine
``stack``          trials as one matrix: :class:`TrialStack`, :func:`stack`, :class:`Template`
``objective``      a loss on a data set: :class:`MeanSquaredError`, :class:`CrossEntropy`
``solver``         statuses, curves and checkpoints of all solvers, :func:`solve`
``descent``        :class:`SGD`, :class:`Adam` and their :class:`Batches`
``second_order``   :class:`Newton`, which is :class:`LevenbergMarquardt` or :class:`LBFGS`; minimum
                   or saddle? The curvature where the gradient is 0
=================  ============================================================================
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
