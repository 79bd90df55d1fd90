"""Checks of options that studies share. Needs no torch."""

from __future__ import annotations

from mahalens.errors import InputError

LARGEST_COUNT = 10**12
"""More than any machine can hold; beyond it, libraries underneath fail in their own words."""


def check_count(name: str, value: int, least: int, most: int = LARGEST_COUNT) -> None:
    """Ask for a whole number between two others, in the words of the command line."""
    if value < least:
        raise InputError(f"--{name} {value}: give a whole number of at least {least}")
    if value > most:
        raise InputError(f"--{name} {value}: give a whole number of at most {most}")
