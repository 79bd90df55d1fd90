"""Reading a trained network as a set of distances.

``mahalens.audit(model, data)`` reads every Linear and every convolution of any model.

===================================  =========================================================
:func:`audit`                        reads a model on data, returns an :class:`AuditRecord`
:func:`audit_features`               reads activations that the user already has
:func:`load_audit`                   a saved record
:func:`prune`                        a smaller model with the same outputs
===================================  =========================================================

What one linear layer says about a Gaussian: a layer ``Wx + b`` [K, D] is a set of K rulers. These
functions are pure, compute in float64 whatever they are given, and leave the layer as it was.

===================================  =========================================================
:func:`read_layer`                   every metric of one layer, as the studies record them
:func:`mirrored_pairs`               units that point in opposite directions
:func:`deduplicate`                  one unit of each such pair
:func:`distance_to_hyperplanes`      how far the hyperplanes miss a point
:func:`distance_in_spreads`          the same in standard deviations of the data
:func:`sphericity`                   how far the layer is from whitening, up to scale
:func:`match_rows`                   eigenvectors and eigenvalues read off the rows
:func:`chance_cosine`                what that reading gives for a randomly rotated whitening
:func:`wnorm_precision_distance`     unit rows against the precision
:func:`read_gram`                    eigenstructure and centre read off ``WᵀW``
:func:`rows_to_read`                 the rows whose directions count under an activation
:func:`gram_scale`                   the factor of ``WᵀW`` under an activation
===================================  =========================================================
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.auditing.features import audit_features
    from mahalens.auditing.gaussian.gram import GramReading, read_gram
    from mahalens.auditing.gaussian.hyperplanes import (
        distance_in_spreads,
        distance_to_hyperplanes,
        sphericity,
    )
    from mahalens.auditing.gaussian.layer import (
        ACTIVATIONS,
        LAYER_METRICS,
        gram_scale,
        read_layer,
        rows_to_read,
    )
    from mahalens.auditing.gaussian.rows import (
        ChanceCosine,
        RowMatch,
        chance_cosine,
        match_rows,
        wnorm_precision_distance,
    )
    from mahalens.auditing.network import audit
    from mahalens.auditing.pruning.apply import prune
    from mahalens.auditing.record import AuditRecord
    from mahalens.auditing.records.files import load_audit
    from mahalens.auditing.repeats.pairs import deduplicate, mirrored_pairs

__all__ = [
    "ACTIVATIONS",
    "LAYER_METRICS",
    "AuditRecord",
    "ChanceCosine",
    "GramReading",
    "RowMatch",
    "audit",
    "audit_features",
    "chance_cosine",
    "deduplicate",
    "distance_in_spreads",
    "distance_to_hyperplanes",
    "gram_scale",
    "load_audit",
    "match_rows",
    "mirrored_pairs",
    "prune",
    "read_gram",
    "read_layer",
    "rows_to_read",
    "sphericity",
    "wnorm_precision_distance",
]

_LATER = {
    "AuditRecord": "mahalens.auditing.record",
    "audit": "mahalens.auditing.network",
    "audit_features": "mahalens.auditing.features",
    "load_audit": "mahalens.auditing.records.files",
    "prune": "mahalens.auditing.pruning.apply",
    "GramReading": "mahalens.auditing.gaussian.gram",
    "read_gram": "mahalens.auditing.gaussian.gram",
    "distance_in_spreads": "mahalens.auditing.gaussian.hyperplanes",
    "distance_to_hyperplanes": "mahalens.auditing.gaussian.hyperplanes",
    "sphericity": "mahalens.auditing.gaussian.hyperplanes",
    "ACTIVATIONS": "mahalens.auditing.gaussian.layer",
    "LAYER_METRICS": "mahalens.auditing.gaussian.layer",
    "gram_scale": "mahalens.auditing.gaussian.layer",
    "read_layer": "mahalens.auditing.gaussian.layer",
    "rows_to_read": "mahalens.auditing.gaussian.layer",
    "ChanceCosine": "mahalens.auditing.gaussian.rows",
    "RowMatch": "mahalens.auditing.gaussian.rows",
    "chance_cosine": "mahalens.auditing.gaussian.rows",
    "match_rows": "mahalens.auditing.gaussian.rows",
    "wnorm_precision_distance": "mahalens.auditing.gaussian.rows",
    "deduplicate": "mahalens.auditing.repeats.pairs",
    "mirrored_pairs": "mahalens.auditing.repeats.pairs",
}
__getattr__, __dir__ = attach(__name__, _LATER)
