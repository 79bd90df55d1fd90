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
AUDIT, UNKNOWN, ELLIPSOIDS = range(3)  # in the order of the README


def blocks(page, kind="python"):
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / page).read_text(), re.S)


def run(page, places=slice(None)):
    """Run the Python examples of a page, all of them or some; return their names."""
    names: dict = {}
    exec(compile("\n".join(blocks(page)[places]), page, "exec"), names)
    return names


def percentages(text):
    return [float(value) for value in re.findall(r"([\d.]+)%", text)]


def check_example_of_an_audit(names, output, model):
    verdict, pruned = output.split("\n", 1)
    record, after = names["record"], names["smaller"]
    dead = len(record.layers[0].units.dead)
    assert f"{dead} of 42 units are dead, all in layer 0" in verdict
    assert record.layers[0].verdict.word == "not judged"  # 26 units: untrained they do much alike
    assert dead == 6
    assert f"{dead} dead units removed" in pruned
    x = names["digits"].x
    assert (model(x) - after(x)).abs().max() < 1e-5


class TestReadme:
    def test_it_is_short(self):
        assert len((ROOT / "README.md").read_text().split()) <= 800
        assert len(blocks("README.md")) == 3
        for code in blocks("README.md"):
            lines = code.splitlines()
            assert len(lines) <= 12
            assert max(map(len, lines)) <= 100

    def test_the_example_of_an_audit_prints_what_it_says(self, capsys):
        names = run("README.md", slice(AUDIT, AUDIT + 1))
        output = capsys.readouterr().out
        assert output == blocks("README.md", "text")[AUDIT]
        check_example_of_an_audit(names, output, names["model"])

    @pytest.mark.slow
    def test_the_example_of_unknown_inputs_prints_what_it_says(self, capsys):
        for name in ("cifar10", "efficientnet-lite0"):
            try:
                find_set(name)
            except InputError as error:
                pytest.skip(str(error))
        run("README.md", slice(UNKNOWN, UNKNOWN + 1))
        measured = percentages(capsys.readouterr().out)
        shown = percentages(blocks("README.md", "text")[UNKNOWN])
        assert measured == pytest.approx(shown, abs=4)  # the last digits depend on the machine

    def test_the_example_with_ellipsoids_prints_what_it_says(self, capsys):
        run("README.md", slice(ELLIPSOIDS, ELLIPSOIDS + 1))
        measured = percentages(capsys.readouterr().out)
        shown = percentages(blocks("README.md", "text")[ELLIPSOIDS])
        assert measured == pytest.approx(shown, abs=1)


def test_the_examples_of_training_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("docs/guides/trials.md")
    printed = capsys.readouterr().out
    assert "target reached" in printed
    statuses, error = re.search(r"(\[.*zero residual.*\]) (\S+)\n", printed).groups()
    assert statuses.count("local minimum") == 6
    assert float(error) < 1e-8
    assert (tmp_path / "fit.safetensors").exists()


@pytest.mark.parametrize(
    "page", ["docs/start.md", pytest.param("docs/guides/unknowns.md", marks=pytest.mark.slow)]
)
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(page)
    shown = "".join(blocks(page, "text"))
    printed = capsys.readouterr().out
    number = r"\d[\d,]*(?:\.\d+)?"
    assert re.sub(number, "0", printed) == re.sub(number, "0", shown)
    assert percentages(printed) == pytest.approx(percentages(shown), abs=4)  # of this machine
    areas = [[float(x) for x in re.findall(r"0\.\d+", text)] for text in (printed, shown)]
    assert areas[0] == pytest.approx(areas[1], abs=0.03)


def test_the_examples_of_ellipsoids_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("docs/guides/ellipsoids.md")
    right, _, _, off, told = capsys.readouterr().out.split("\n", 4)
    assert float(re.search(r"[\d.]+", right)[0]) == 1
    assert float(re.search(r"\((.*)\)", off)[1]) < 1e-3
    assert "12 distances determine 12 of 20 directions" in told
    assert (tmp_path / "classes.safetensors").exists()


def test_the_example_of_a_watched_training_prints_what_the_page_says(capsys):
    page = "docs/guides/audit.md"
    (place,) = [n for n, code in enumerate(blocks(page)) if "for epoch in range" in code]
    run(page, slice(place, place + 1))
    output = capsys.readouterr().out
    (printed,) = [text for text in blocks(page, "text") if "dead units" in text]
    # Units near the edge differ from machine to machine.
    counts, shown = (list(map(int, re.findall(r"(\d+) dead units", t))) for t in (output, printed))
    assert counts == pytest.approx(shown, abs=2)
    assert counts[-1] > counts[0]


def test_the_example_of_audit_json_reads_one(tmp_path, monkeypatch, capsys):
    from torch import nn, randn

    from mahalens import audit
    from mahalens.auditing.record_tables import audit_json

    record = audit(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), randn(50, 3))
    (tmp_path / "audits" / "model").mkdir(parents=True)
    text = json.dumps(audit_json(record))
    (tmp_path / "audits" / "model" / "audit.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    run("docs/reference/audit-json.md")
    assert capsys.readouterr().out.startswith(record.verdict)


def test_the_example_of_data_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("docs/guides/data.md", slice(1))
    assert capsys.readouterr().out.strip() in (ROOT / "docs" / "guides" / "data.md").read_text()


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
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_version_is_the_same_everywhere():
    from mahalens import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
