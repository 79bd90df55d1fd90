"""The site shows every public name, and each has something to show."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mahalens

sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "_ext"))
names = pytest.importorskip("names", reason="pip install 'mahalens[docs]'")

ROOMS = names.rooms()
PUBLIC = [(room, name) for room in ROOMS for name in names.public_names(room)]


@pytest.mark.parametrize(("room", "name"), PUBLIC)
def test_every_public_name_explains_itself(room, name):
    value = getattr(import_module(f"mahalens.{room}"), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        text = value.__doc__ or ""
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        assert is_error or "\n" in text.strip(), (
            f"{name} has one line; add formula, shapes or an example"
        )
    else:
        text = names.constant_text(room, name)
    assert not text.lstrip().startswith("Members:"), f"{name} has no text below it"


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_on_the_page_of_its_room(room):
    shown = re.findall(r"^\.\. (?:auto|py:)\w+:: (\w+)$", names.room_page(room), re.M)
    assert shown == names.public_names(room)


def test_every_name_of_the_package_is_in_the_overview():
    starred = re.findall(r"\| \[`(\w+)`\]\(#[\w.]+\) \* \|", names.overview())
    assert set(starred) == set(mahalens.__all__) - {"__version__", "ellipsoids"}
