"""Pages stay short enough to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
MADE = ("_build", "_gallery", "_notebooks", "api")  # folders that building the site makes
TAKEN_IN = ("contributing.md", "changelog.md", "security.md", "code-of-conduct.md")  # of the top
LONGEST, ALL = 2_500, 45_000


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if not set(MADE) & set(page.relative_to(DOCS).parts)
    and not (page.parent.name == "develop" and page.name in TAKEN_IN)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_is_short(page):
    if "reference" not in page.parts:  # which is looked up, not read
        assert words(page) <= LONGEST, "split it by topic"


def test_all_pages_together_are_short():
    assert len(PAGES) > 25
    assert sum(map(words, PAGES)) <= ALL
