"""Checks the options of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mahalens.auditing.record import Settings
from mahalens.errors import InputError

_COUNTS = {"bins": 1, "rows_kept": 2, "patches": 1, "widest": 1, "prototypes": 1}
_MOST = 10**9


def settings_from(given: Mapping[str, Any]) -> Settings:
    """The settings with what a user gave in the place of defaults.

    >>> settings_from({"rare": [0.1], "seed": 3}).rare
    (0.1,)
    """
    known = Settings.__struct_fields__
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"audit has no option {unknown[0]!r}; its settings are {', '.join(known)}")
    values = dict(given)
    for name in ("rare", "quantiles"):
        if name in values:
            values[name] = _shares(name, values[name])
    for name, least in _COUNTS.items():
        if name in values:
            _whole(name, values[name], least)
    if values.get("clusters") is not None:
        _whole("clusters", values["clusters"], 2)
    if "seed" in values:
        _whole("seed", values["seed"], 0)
    for name, low, high in (("tolerance", 0, 1e9), ("through", 0, 1e9), ("cosine", 0, 1)):
        if name in values and not (_is_number(values[name]) and low <= values[name] <= high):
            raise InputError(f"{name} is {values[name]!r}, wanted a number from {low} to {high:g}")
    return Settings(**values)


def _shares(name: str, value: Any) -> tuple[float, ...]:
    values = (value,) if _is_number(value) else tuple(value)
    fits = values and all(_is_number(share) and 0 < share < 1 for share in values)
    if not fits:
        raise InputError(f"{name} is {value!r}, wanted shares between 0 and 1, such as 0.05")
    return tuple(float(share) for share in values)


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise InputError(f"{name} is {value!r}, wanted a whole number of at least {least}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
