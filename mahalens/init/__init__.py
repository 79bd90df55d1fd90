"""Starting weights, and a look at them before training.

One layer, set in place from what it is fed (:mod:`mahalens.init.starts`):

===========================  ===================================================================
:func:`kaiming_`             random rows through the origin: the usual start
:func:`sample_point_bias_`   random rows, each hyperplane through a random sample
:func:`whiten_`              one whitening of the whole input
:func:`cluster_pca_`         through the means of clusters, across their principal axes
:func:`class_mean_`          random rows through the means of classes
:func:`lsuv_`                orthonormal rows at unit output variance
===========================  ===================================================================

A whole model, layer by layer: :func:`initialise`; by name where one is built:
``Chain.build(init="cluster_pca", data=x)``. A list of what is wrong with a start:
:func:`check_init`. Each name loads its module on first use.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
