"""How classes and verdicts look, on the page and in figures alike."""

from __future__ import annotations

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which readers with any colour vision tell apart."""
SHAPES = ("circle", "square", "diamond", "up", "down")
"""Shapes cycle out of step with the colours: the first 30 classes all look different."""
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "up": "^", "down": "v"}
"""The same for matplotlib."""
PLAIN = "#8a8a8a"
"""Of classes beyond those 30: a reader could not learn so many marks."""

VERDICTS = {
    "distance-like": ("distance", "◎", "#0072B2"),
    "intensity-like": ("intensity", "▲", "#D55E00"),
    "mixed": ("mixed", "◐", "#8a6d00"),
    "even": ("even", "≈", "#5b4a9e"),
    "too few units": ("few", "…", "#6b7480"),
    "not judged": ("unjudged", "?", "#6b7480"),
    "broken": ("broken", "✕", "#9c0033"),
}
"""Class in the style sheet, symbol, and colour in figures."""

MEANINGS = {
    "distance-like": "Hyperplanes pass through classes clearly more often than by chance: the "
    "units measure how far an input is from a prototype.",
    "intensity-like": "Hyperplanes keep clear of the classes, more than by chance: the units "
    "measure how strong a feature is.",
    "mixed": "The signs point both ways, or are too weak to call: more samples could tip them.",
    "even": "Hyperplanes pass through classes about as often as by chance.",
    "too few units": "The layer has too few live units to tell it from chance.",
    "not judged": "Nothing sets the layer apart from chance or from an untrained network, or "
    "there is nothing to judge it by.",
    "broken": "Most units are dead or saturated, or no unit responds to most of the data.",
}
"""Each word in a sentence."""


def verdict_mark(word: str) -> tuple[str, str, str]:
    """The look of a verdict; a word from another version looks neutral.

    >>> verdict_mark("distance-like")[1]
    '◎'
    """
    return VERDICTS.get(word, ("unknown", "·", PLAIN))


def class_mark(label: int, classes: int) -> tuple[str, str]:
    """Colour and marker of a class.

    >>> class_mark(6, 10)
    ('#0072B2', 's')
    """
    if classes > len(COLOURS) * len(SHAPES):
        return PLAIN, "o"
    return COLOURS[label % len(COLOURS)], MARKERS[SHAPES[label % len(SHAPES)]]
