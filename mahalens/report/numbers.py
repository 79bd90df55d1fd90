"""How numbers look in terminals, figures, pages and documents: decided here and only here."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e6  # outside, a power of ten reads better than a row of zeros


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; None, NaN, text and booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None, figures: int = 3) -> str:
    """Write a number with so many significant figures.

    Whole numbers stay whole, powers of ten appear only where zeros would crowd the digits, and
    a number that is missing or not finite is a dash.

    >>> [number(v) for v in (20, 10000, 0.12345, 0.4, 47012.3, 2.9e-31, None, float("nan"))]
    ['20', '10,000', '0.123', '0.400', '47,000', '2.9e-31', '–', '–']
    """
    if value is None or not is_number(value):
        return MISSING
    value = float(value)
    size = abs(value)
    if value == int(value) and size < _PLAIN_TO:
        return f"{int(value):,}"
    mantissa, exponent = f"{value:.{figures - 1}e}".split("e")
    rounded = float(f"{mantissa}e{exponent}")  # rounding may carry into the next power of ten
    if not _PLAIN_FROM <= abs(rounded) < _PLAIN_TO:
        short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{short}e{int(exponent)}"
    return f"{rounded:,.{max(0, figures - 1 - int(exponent))}f}"


def interval(bounds: Sequence[float | None] | None) -> str:
    """Write the lower and upper end of an interval.

    >>> interval([0.0801, 0.162]), interval(None)
    ('0.0801 to 0.162', '–')
    """
    if bounds is None or len(bounds) != 2 or not all(is_number(b) for b in bounds):
        return MISSING
    return f"{number(bounds[0])} to {number(bounds[1])}"


def mean_and_half(
    mean: float | None, bounds: Sequence[float | None] | None, percent: bool = False
) -> tuple[str, str]:
    """Write a mean and half the width of its interval, rounded alike; "" without an interval.

    The half-width has two figures and decides how many places the mean has. Percentages have two
    places, as 99.98 is not 100.

    >>> mean_and_half(34.2178, [33.0, 35.4356]), mean_and_half(0.95513, [0.9541, 0.95616])
    (('34.2', '1.2'), ('0.9551', '0.0010'))
    >>> mean_and_half(97.5, [97.5, 97.5], percent=True), mean_and_half(0.95513, None)
    (('97.50', '0.00'), ('0.9551', ''))
    >>> mean_and_half(-1e-17, [-2.0, 2.0])
    ('0.0', '2.0')
    """
    if mean is None or not is_number(mean):
        return MISSING, ""
    alone = f"{mean:.2f}" if percent else number(mean, figures=4)
    if interval(bounds) == MISSING or bounds is None:
        return alone, ""
    low, high = (float(b) for b in bounds if b is not None)
    half = (high - low) / 2
    if percent:
        return alone, f"{half:.2f}" if half >= 0.005 or half == 0 else number(half, figures=2)
    if half < 1e-6 or not max(abs(mean), half) < _PLAIN_TO:
        return alone, number(half, figures=2)
    places = max(0, 1 - int(f"{half:.1e}".split("e")[1]))
    shown = f"{mean:,.{places}f}"
    return shown if float(shown.replace(",", "")) else shown.lstrip("-"), f"{half:,.{places}f}"


def published_value(value: float | None, percent: bool = False) -> str:
    """Write a published mean, which was rounded before: without zeros at its end.

    >>> published_value(0.122), published_value(98.3, percent=True), published_value(None)
    ('0.122', '98.30', '–')
    """
    if value is None or not is_number(value):
        return MISSING
    if percent:
        return f"{value:.2f}"
    text = number(value, figures=4)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def signed(value: float | None) -> str:
    """Write a difference: a positive one begins with a plus.

    >>> signed(0.5), signed(-2), signed(None)
    ('+0.500', '-2', '–')
    """
    text = number(value)
    return f"+{text}" if value is not None and is_number(value) and value > 0 else text


def p_value(p: float | None) -> str:
    """Write a p-value with two figures.

    >>> p_value(0.0312), p_value(3.2e-9), p_value(None)
    ('0.031', '< 0.0001', '–')
    """
    if p is None or not is_number(p):
        return MISSING
    return "< 0.0001" if p < 1e-4 else number(p, 2)


def anything(value: object) -> str:
    """Write a value of a record: a number, text, a list or dictionary of them, or nothing.

    >>> anything(1.0), anything("0.122 against 0.2675"), anything([0.71, 0.993]), anything(None)
    ('1', '0.122 against 0.2675', '0.710, 0.993', '–')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(anything(item) for item in value) or MISSING
    if isinstance(value, dict):
        return ", ".join(f"{key} {anything(item)}" for key, item in value.items()) or MISSING
    return str(value) if value is not None and value != "" else MISSING


def duration(seconds: float | None) -> str:
    """Write a time as a person would say it.

    >>> [duration(s) for s in (0.004, 12.34, 200, 7300, None)]
    ['under 0.1 s', '12.3 s', '3 min 20 s', '2 h 2 min', '–']
    """
    if seconds is None or not is_number(seconds):
        return MISSING
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def in_sentence(label: str) -> str:
    """Return a label as it stands in the middle of a sentence: abbreviations keep their capitals.

    >>> in_sentence("Test accuracy"), in_sentence("AUROC")
    ('test accuracy', 'AUROC')
    """
    return label[:1].lower() + label[1:] if label[1:2].islower() else label
