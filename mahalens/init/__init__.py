"""Starting weights, and a look at them before training.

One layer, set in place from what it is fed (:mod:`mahalens.init.layers`):

===========================  ===================================================================
:func:`kaiming_`             random rows through the origin: the usual start
:func:`sample_point_bias_`   random rows, each hyperplane through a random sample
:func:`whiten_`              one whitening of the whole input
:func:`cluster_pca_`         through the means of clusters, across their principal axes
:func:`class_mean_`          random rows through the means of classes
:func:`lsuv_`                orthonormal rows at unit output variance
===========================  ===================================================================

A whole model, layer by layer: :func:`initialise`; by name where one is built:
``Chain.build(init="cluster_pca", data=x)``. What is wrong with a start: :func:`check_init`.
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.init.check import InitCheck, check_init
    from mahalens.init.layer_check import LayerCheck
    from mahalens.init.layers import (
        class_mean_,
        cluster_pca_,
        kaiming_,
        lsuv_,
        sample_point_bias_,
        whiten_,
    )
    from mahalens.init.methods import METHODS
    from mahalens.init.model import Initialised, initialise
    from mahalens.init.random import kaiming_through_samples

__all__ = [
    "METHODS",
    "InitCheck",
    "Initialised",
    "LayerCheck",
    "check_init",
    "class_mean_",
    "cluster_pca_",
    "initialise",
    "kaiming_",
    "kaiming_through_samples",
    "lsuv_",
    "sample_point_bias_",
    "whiten_",
]

_LAYERS = "mahalens.init.layers"

__getattr__, __dir__ = attach(
    __name__,
    {
        "kaiming_": _LAYERS,
        "sample_point_bias_": _LAYERS,
        "whiten_": _LAYERS,
        "cluster_pca_": _LAYERS,
        "class_mean_": _LAYERS,
        "lsuv_": _LAYERS,
        "initialise": "mahalens.init.model",
        "Initialised": "mahalens.init.model",
        "METHODS": "mahalens.init.methods",
        "check_init": "mahalens.init.check",
        "InitCheck": "mahalens.init.check",
        "LayerCheck": "mahalens.init.layer_check",
        "kaiming_through_samples": "mahalens.init.random",
    },
)
