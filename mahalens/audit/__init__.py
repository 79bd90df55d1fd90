"""Reading a trained network: what its linear layers say about a Gaussian.

A layer ``Wx + b`` [K, D] is a set of K rulers. These functions are pure, compute in float64
whatever they are given, and leave the layer as it was.

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

from mahalens.audit.gram import GramReading, read_gram
from mahalens.audit.hyperplanes import (
    distance_in_spreads,
    distance_to_hyperplanes,
    sphericity,
)
from mahalens.audit.layer import ACTIVATIONS, LAYER_METRICS, gram_scale, read_layer, rows_to_read
from mahalens.audit.pairs import deduplicate, mirrored_pairs
from mahalens.audit.rows import (
    ChanceCosine,
    RowMatch,
    chance_cosine,
    match_rows,
    wnorm_precision_distance,
)

__all__ = [
    "ACTIVATIONS",
    "LAYER_METRICS",
    "ChanceCosine",
    "GramReading",
    "RowMatch",
    "chance_cosine",
    "deduplicate",
    "distance_in_spreads",
    "distance_to_hyperplanes",
    "gram_scale",
    "match_rows",
    "mirrored_pairs",
    "read_gram",
    "read_layer",
    "rows_to_read",
    "sphericity",
    "wnorm_precision_distance",
]
