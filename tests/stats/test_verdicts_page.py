"""What docs/reference/verdicts.md shows must run, and say what the page says."""

import re
from pathlib import Path

from mahalens.studies.claims import Predicate

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verdicts.md"


def test_the_page_prints_what_it_says(capsys):
    page = PAGE.read_text()
    code = re.search(r"```python\n(.*?)```", page, re.S)[1]
    exec(compile(code, "verdicts.md", "exec"), {})
    assert capsys.readouterr().out == re.search(r"```text\n(.*?)```", page, re.S)[1]


def test_every_kind_of_claim_has_its_rule():
    rules = PAGE.read_text().split("## Rules")[1].split("\n\n")[1].splitlines()[2:]
    together = 1  # Both and Every are one row
    assert len(rules) == len(Predicate.__args__) - together
