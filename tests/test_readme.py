"""What the README and the pages show must run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mahalens.data.named import find_set
from mahalens.errors import InputError

ROOT = Path(__file__).parent.parent
AUDIT, UNKNOWN, ELLIPSOIDS = (slice(n, n + 1) for n in range(3))  # in the order of the README


def blocks(page, kind="python"):
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / page).read_text(), re.S)


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Runs the Python examples of a page, all of them or some; returns what they print."""
    monkeypatch.chdir(tmp_path)

    def run(page, places=slice(None), names=None):
        code = compile("\n".join(blocks(page)[places]), page, "exec")
        exec(code, {} if names is None else names)
        return capsys.readouterr().out

    return run


def percentages(text):
    return [float(value) for value in re.findall(r"([\d.]+)%", text)]


class TestReadme:
    def test_it_is_short(self):
        assert len((ROOT / "README.md").read_text().split()) <= 800
        assert len(blocks("README.md")) == 3
        for code in blocks("README.md"):
            lines = code.splitlines()
            assert len(lines) <= 12
            assert max(map(len, lines)) <= 100

    def test_the_example_of_an_audit_prints_what_it_says(self, printed):
        names = {}
        output = printed("README.md", AUDIT, names)
        assert [output] == blocks("README.md", "text")[AUDIT]
        verdict, pruned = output.split("\n", 1)
        record, x = names["record"], names["digits"].x
        dead = len(record.layers[0].units.dead)
        assert f"{dead} of 42 units are dead, all in layer 0" in verdict
        assert record.layers[0].verdict.word == "not judged"  # 26 units: untrained, much alike
        assert dead == 6
        assert f"{dead} dead units removed" in pruned
        assert (names["model"](x) - names["smaller"](x)).abs().max() < 1e-5

    @pytest.mark.parametrize(
        ("place", "needs", "off"),  # the last digits depend on the machine
        [
            pytest.param(UNKNOWN, ("cifar10", "efficientnet-lite0"), 4, marks=pytest.mark.slow),
            (ELLIPSOIDS, (), 1),
        ],
        ids=["unknown inputs", "ellipsoids"],
    )
    def test_an_example_prints_the_percentages_it_says(self, place, needs, off, printed):
        for name in needs:
            try:
                find_set(name)
            except InputError as error:
                pytest.skip(str(error))
        (shown,) = blocks("README.md", "text")[place]
        assert percentages(printed("README.md", place)) == pytest.approx(
            percentages(shown), abs=off
        )


def test_the_examples_of_training_run(printed, tmp_path):
    output = printed("docs/guides/trials.md")
    assert "target reached" in output
    statuses, error = re.search(r"(\[.*zero residual.*\]) (\S+)\n", output).groups()
    assert statuses.count("local minimum") == 6
    assert float(error) < 1e-8
    assert (tmp_path / "fit.safetensors").exists()


@pytest.mark.parametrize(
    "page",
    [
        "docs/start.md",
        "docs/guides/estimators.md",
        pytest.param("docs/guides/unknowns.md", marks=pytest.mark.slow),
    ],
)
def test_a_page_prints_what_it_says(page, printed):
    output, shown = printed(page), "".join(blocks(page, "text"))
    number = r"\d[\d,]*(?:\.\d+)?"
    assert re.sub(number, "0", output) == re.sub(number, "0", shown)
    assert percentages(output) == pytest.approx(percentages(shown), abs=4)  # of this machine
    areas = [[float(x) for x in re.findall(r"0\.\d+", text)] for text in (output, shown)]
    assert areas[0] == pytest.approx(areas[1], abs=0.03)


def test_the_examples_of_ellipsoids_run(printed, tmp_path):
    right, _, _, off, told = printed("docs/guides/ellipsoids.md").split("\n", 4)
    assert float(re.search(r"[\d.]+", right)[0]) == 1
    assert float(re.search(r"\((.*)\)", off)[1]) < 1e-3
    assert "12 distances determine 12 of 20 directions" in told
    assert (tmp_path / "classes.safetensors").exists()


def test_the_example_of_a_watched_training_prints_what_the_page_says(printed):
    page = "docs/guides/audit.md"
    (place,) = [n for n, code in enumerate(blocks(page)) if "for epoch in range" in code]
    texts = (
        printed(page, slice(place, place + 1)),
        *(b for b in blocks(page, "text") if "dead units" in b),
    )
    # Units near the edge differ from machine to machine.
    counts, shown = (list(map(int, re.findall(r"(\d+) dead units", text))) for text in texts)
    assert counts == pytest.approx(shown, abs=2)
    assert counts[-1] > counts[0]


def test_the_example_of_audit_json_reads_one(printed, tmp_path):
    from torch import nn, randn

    from mahalens import audit
    from mahalens.auditing.record_tables import audit_json

    record = audit(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), randn(50, 3))
    (tmp_path / "audits" / "model").mkdir(parents=True)
    text = json.dumps(audit_json(record))
    (tmp_path / "audits" / "model" / "audit.json").write_text(text)
    assert printed("docs/reference/audit-json.md").startswith(record.verdict)


def test_the_example_of_data_prints_what_the_page_says(printed):
    page = "docs/guides/data.md"
    assert printed(page, slice(1)).strip() in (ROOT / page).read_text()


def test_every_table_of_the_benchmarks_is_made_from_its_figures():
    pages = sorted((ROOT / "docs" / "develop").glob("*.md"))
    wanted = sum(page.read_text().count("<!-- benchmark ") for page in pages)
    command = [sys.executable, ROOT / "docs" / "benchmarks.py"]
    tables = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert wanted >= 11
    assert len(re.findall(r"^<!-- benchmark \w+ -->\n\| ", tables, re.M)) == wanted


@pytest.mark.parametrize("page", ["README.md", "docs/reference/cli.md"])
def test_every_command_shown_exists(page):
    from mahalens.cli import cli

    shown = re.findall(r"(?:^|`)mahalens (\w+)", (ROOT / page).read_text(), re.M)
    assert shown
    assert set(shown) <= set(cli.commands)


def test_every_link_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_version_is_the_same_everywhere():
    from mahalens import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
