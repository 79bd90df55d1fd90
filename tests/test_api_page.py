"""The page of public names is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "reference" / "api.md"


def test_the_page_of_public_names_is_up_to_date():
    made = subprocess.run(
        [sys.executable, DOCS / "api.py"], capture_output=True, text=True, check=True
    ).stdout
    assert (PAGE).read_text() == made, "make it again: python docs/api.py --write"


def test_every_public_name_is_told():
    text = (PAGE).read_text()
    assert not re.findall(r"^\| `\w+.*` \*? ?\|\s*\|$", text, re.M)
    assert not re.search(r":\w+:`|``|object at", text)
    for page in re.findall(r"\]\(([\w./-]+\.md)\)", text):
        assert (PAGE.parent / page).is_file(), page


def test_every_name_of_the_package_is_on_it():
    import mahalens

    starred = re.findall(r"^\| `(\w+).*` \* \|", (PAGE).read_text(), re.M)
    rest = {"__version__", "ellipsoids", "InputError", "MahalensError"}
    assert set(mahalens.__all__) - rest == set(starred)
