"""What the models of the first studies are called and coloured: networks that give distances."""

from __future__ import annotations

_LABELS = {
    "abs": "MD_Abs",
    "relu": "MD_ReLU",
    "sigmoid": "MD_Sigmoid",
    "ground-truth": "Ground truth",
    "elliptical": "Elliptical",
    "full": "Full",
    "diagonal": "Diagonal",
    "spherical": "Spherical",
    "qda": "QDA (scikit-learn)",
}
ORDER = tuple(model for model in _LABELS if model != "qda")
"""The order of tables and figures; rivals, and models of several sizes, come last."""

# Models that come in several sizes, such as pca-l2-64: the number follows the name.
_FAMILY_LABELS = {
    "pca-l2": "PCA-L2, {}",
    "pca-l1": "PCA-L1, {}",
    "remainder": "PCA-L2 + rest, {}",
    "rank": "Rank {} + rest",
    "truncated": "Rank {}, truncated",
    "shared": "Shared basis, {}",
    "clusters": "{} clusters a class",
    "mixture": "Mixture of {} (scikit-learn)",
}
# Okabe and Ito's palette: told apart under every common form of colour blindness.
_COLOURS = {
    "abs": "#0072B2",
    "relu": "#D55E00",
    "sigmoid": "#009E73",
    "ground-truth": "#333333",
    "elliptical": "#333333",
    "full": "#333333",
    "spherical": "#CC79A7",
    "diagonal": "#E69F00",
    "qda": "#8a6d00",
    "pca-l2": "#0072B2",
    "truncated": "#0072B2",
    "pca-l1": "#D55E00",
    "remainder": "#009E73",
    "rank": "#009E73",
    "shared": "#56B4E9",
    "clusters": "#D55E00",
    "mixture": "#8a6d00",
}


def family(model: str) -> tuple[str, int | None]:
    """The family of a model and its size, if it is one of several sizes.

    >>> family("pca-l2-64"), family("abs")
    (('pca-l2', 64), ('abs', None))
    """
    name, _, size = model.rpartition("-")
    return (name, int(size)) if name in _FAMILY_LABELS and size.isdecimal() else (model, None)


def distance_label(model: str) -> str:
    """The name of a model as sources 000 and 002 write it.

    >>> distance_label("abs"), distance_label("pca-l2-64"), distance_label("my-model")
    ('MD_Abs', 'PCA-L2, 64', 'my-model')
    """
    name, size = family(model)
    return _LABELS.get(model, model) if size is None else _FAMILY_LABELS[name].format(size)


def distance_colour(model: str) -> str | None:
    """One fixed colour a model or family; none for one nobody knows."""
    return _COLOURS.get(family(model)[0])
