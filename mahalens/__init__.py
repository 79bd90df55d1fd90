"""Reads and builds neural networks as distance measures.

The public API on one screen; each name loads its module on first use.
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach
from mahalens._version import __version__

if TYPE_CHECKING:
    from mahalens.auditing import (
        AuditRecord,
        audit_features,
        load_audit,
        prune,
        read_gram,
        read_layer,
    )
    from mahalens.auditing.network import audit
    from mahalens.data import (
        LabelledData,
        draw_ellipsoids,
        draw_gaussian,
        load_gaussian,
        load_set,
        save_gaussian,
    )
    from mahalens.errors import InputError, MahalensError
    from mahalens.geometry import Ellipsoids, Gaussian, ellipsoids, reconstruct
    from mahalens.init import (
        InitCheck,
        check_init,
        class_mean_,
        cluster_pca_,
        initialise,
        kaiming_through_samples,
        lsuv_,
        sample_point_bias_,
        whiten_,
    )
    from mahalens.nn import (
        Abs,
        AbsReLU,
        Chain,
        DistanceHead,
        Mahalanobis,
        Neg,
        Norm,
        OffsetL2,
        PointSlope,
        compactness_penalty,
        mahalanobis_model,
        md_abs,
        md_relu,
        md_sigmoid,
        orthogonality_penalty,
        volume_penalty,
    )
    from mahalens.report import build_report
    from mahalens.train import (
        SGD,
        Adam,
        Batches,
        CrossEntropy,
        MeanSquaredError,
        Newton,
        TrialStack,
        solve,
    )
    from mahalens.train.fit import fit
    from mahalens.train.stack import stack

_EXPORTS = {
    # geometry: a Gaussian as mean and factor; distances, whitening, eigenstructure
    "Gaussian": "mahalens.geometry",
    # many ellipsoids at once: ellipsoids.from_data(...).distances(x); points from distances
    "Ellipsoids": "mahalens.geometry",
    "ellipsoids": "mahalens.geometry",
    "reconstruct": "mahalens.geometry",
    # nn: layers, and architectures as data
    "Abs": "mahalens.nn",
    "AbsReLU": "mahalens.nn",
    "Neg": "mahalens.nn",
    "Norm": "mahalens.nn",
    "OffsetL2": "mahalens.nn",
    "PointSlope": "mahalens.nn",
    "Chain": "mahalens.nn",
    "md_abs": "mahalens.nn",
    "md_relu": "mahalens.nn",
    "md_sigmoid": "mahalens.nn",
    "mahalanobis_model": "mahalens.nn",
    # nn: classifying by distance, with a reject option; penalties
    "DistanceHead": "mahalens.nn",
    "Mahalanobis": "mahalens.nn",
    "orthogonality_penalty": "mahalens.nn",
    "volume_penalty": "mahalens.nn",
    "compactness_penalty": "mahalens.nn",
    # init: starting weights, of a layer or of a whole model, and a check before training
    "initialise": "mahalens.init",
    "check_init": "mahalens.init",
    "InitCheck": "mahalens.init",
    "cluster_pca_": "mahalens.init",
    "whiten_": "mahalens.init",
    "class_mean_": "mahalens.init",
    "sample_point_bias_": "mahalens.init",
    "lsuv_": "mahalens.init",
    "kaiming_through_samples": "mahalens.init",
    # train: many trials at once
    "stack": "mahalens.train",
    "fit": "mahalens.train",
    "TrialStack": "mahalens.train",
    "Batches": "mahalens.train",
    "CrossEntropy": "mahalens.train",
    "MeanSquaredError": "mahalens.train",
    "SGD": "mahalens.train",
    "Adam": "mahalens.train",
    "Newton": "mahalens.train",
    "solve": "mahalens.train",
    # audit: audit(model, data) reads any network; what one layer says about a Gaussian
    "audit": "mahalens.auditing",
    "audit_features": "mahalens.auditing",
    "AuditRecord": "mahalens.auditing",
    "load_audit": "mahalens.auditing",
    "prune": "mahalens.auditing",
    "read_layer": "mahalens.auditing",
    "read_gram": "mahalens.auditing",
    # data
    "draw_ellipsoids": "mahalens.data",
    "draw_gaussian": "mahalens.data",
    "load_gaussian": "mahalens.data",
    "save_gaussian": "mahalens.data",
    "load_set": "mahalens.data",
    "LabelledData": "mahalens.data",
    # report
    "build_report": "mahalens.report",
    # errors
    "MahalensError": "mahalens.errors",
    "InputError": "mahalens.errors",
}

__all__ = [
    "SGD",
    "Abs",
    "AbsReLU",
    "Adam",
    "AuditRecord",
    "Batches",
    "Chain",
    "CrossEntropy",
    "DistanceHead",
    "Ellipsoids",
    "Gaussian",
    "InitCheck",
    "InputError",
    "LabelledData",
    "Mahalanobis",
    "MahalensError",
    "MeanSquaredError",
    "Neg",
    "Newton",
    "Norm",
    "OffsetL2",
    "PointSlope",
    "TrialStack",
    "__version__",
    "audit",
    "audit_features",
    "build_report",
    "check_init",
    "class_mean_",
    "cluster_pca_",
    "compactness_penalty",
    "draw_ellipsoids",
    "draw_gaussian",
    "ellipsoids",
    "fit",
    "initialise",
    "kaiming_through_samples",
    "load_audit",
    "load_gaussian",
    "load_set",
    "lsuv_",
    "mahalanobis_model",
    "md_abs",
    "md_relu",
    "md_sigmoid",
    "orthogonality_penalty",
    "prune",
    "read_gram",
    "read_layer",
    "reconstruct",
    "sample_point_bias_",
    "save_gaussian",
    "solve",
    "stack",
    "volume_penalty",
    "whiten_",
]

__getattr__, __dir__ = attach(__name__, _EXPORTS)
