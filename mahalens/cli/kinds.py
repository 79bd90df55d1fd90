"""Kinds of option that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mahalens.errors import InputError

FOLDER = click.Path(path_type=Path)


class CommaSeparated(click.ParamType):  # type: ignore[type-arg]
    """Several values in one option, separated by commas."""

    name = "a,b,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Split the text."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


class WholeNumbers(CommaSeparated):
    """Several whole numbers in one option, separated by commas."""

    name = "n,n,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text and read the numbers."""
        parts = super().convert(value, param, ctx)
        if not parts:
            raise InputError(f"{param.opts[0]} is empty: give some, or leave it out")
        try:
            return tuple(int(part) for part in parts)
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 4,8,64", param, ctx)


class Shares(CommaSeparated):
    """Several shares between 0 and 1 in one option, separated by commas."""

    name = "share,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text and read the numbers."""
        parts = super().convert(value, param, ctx)
        try:
            shares = tuple(float(part) for part in parts)
        except ValueError:
            shares = ()
        if not shares or not all(0 < share < 1 for share in shares):
            self.fail(
                f"{value!r} is no list of shares between 0 and 1 such as 0.05,0.01", param, ctx
            )
        return shares
