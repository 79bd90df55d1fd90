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
    "broken": ("broken", "✕", "#9c0033"),
}
"""Class in the style sheet, symbol, and colour in figures."""


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
