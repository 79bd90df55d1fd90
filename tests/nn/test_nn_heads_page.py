"""What docs/heads.md shows must run, and say what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "heads.md"


def test_the_page_prints_what_it_says(capsys):
    page = PAGE.read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    exec(compile(code, "heads.md", "exec"), {})
    said = "".join(re.findall(r"```text\n(.*?)```", page, re.S)).splitlines()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(said) == 6
    for shown, wanted in zip(printed, said, strict=True):
        # The words to the letter; the figures as far as other processors round them.
        assert re.sub(r"[\d.]+", "#", shown) == re.sub(r"[\d.]+", "#", wanted)
        trained = wanted.startswith("compactness")
        for got, want in zip(*(re.findall(r"[\d.]+", t) for t in (shown, wanted)), strict=True):
            assert float(got) == pytest.approx(float(want), abs=8 if trained else 0.5)
