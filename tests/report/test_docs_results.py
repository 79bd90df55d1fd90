"""Documents print their tables with ``docs/results.py``, from run folders alone."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import WITHOUT_VARIANTS, edit, write_run

from mahalens.errors import InputError
from mahalens.studies.claims import Claim, Lower, every

SCRIPT = Path(__file__).parents[2] / "docs" / "results.py"
Print = Callable[..., str]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """Return what the script prints, given its arguments."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_a_run_by_variant(results: Print, tmp_path: Path) -> None:
    lines = results(write_run(tmp_path / "run", lost=(3,))).splitlines()
    assert lines[:3] == ["```sh", "mahalens run pretend --out runs/demo", "```"]
    assert "mahalens 0.1.0, torch 2.13.0" in lines[4]
    assert "58 done, 2 non-finite" in lines[4]
    for part in ("**Iris**", "**Wine**", "| Model | accuracy | loss | turns |"):
        assert part in lines
    assert any(line.startswith("| bent | ") and "(91.5)" in line for line in lines)
    assert "| Claim | Iris | Wine | Published |" in lines
    assert not any("Pair" in line for line in lines)


def test_a_run_in_a_line(results: Print, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    edit(run / "summary.json", lambda summary: summary["facts"].update(seconds=8000))
    command = "`mahalens run pretend --out runs/demo`"
    assert results("--show", "line", run) == f"- **run**, 10 trials, 2 h 13 min: {command}\n"
    assert "It took 2 h 13 min." in results("--show", "command", run)
    part = {"seed": 3, "trials": 5, "command": "mahalens run pretend --seed 3"}
    part |= {"mahalens": "0.2.0", "torch": "2.13.0"}
    edit(run / "config.json", lambda config: config.update(pooled=[part, part | {"seed": 4}]))
    text = results("--show", "line", run)
    assert text.endswith(": `mahalens run pretend --seed 3`, pooled with other seeds\n")
    assert results("--show", "command", run).count("mahalens run pretend --seed 3") == 2


def test_more_tables_on_demand(results: Print, tmp_path: Path) -> None:
    text = results("--show", "tests, metrics", write_run(tmp_path / "run"))
    assert "| Pair | Difference | Cohen’s d | Preferred test | Its Holm p |" in text
    assert "| Model | Mean | Published | SD | 95 % interval |" in text
    assert "mahalens run" not in text


def test_some_models_and_metrics_in_their_order(results: Print, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    text = results("--show", "results", "--models", "bent", "--metrics", "loss,accuracy", run)
    assert "| Model | loss | accuracy |" in text
    assert "| bent | " in text
    assert "| plain | " not in text
    assert "| plain | " in results("--show", "results", run)


def test_a_line_per_variant(results: Print, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = results("--show", "by-variant", "--metrics", "loss,accuracy", run).splitlines()
    assert lines.count("| Data | plain | bent | round |") == 2
    assert "**accuracy**" in lines
    assert sum(line.startswith(("| Iris | ", "| Wine | ")) for line in lines) == 4
    one = results("--show", "by-variant", "--models", "bent", "--metrics", "loss,accuracy", run)
    assert "| Data | loss | accuracy |" in one
    assert next(line for line in lines if "Iris" in line).split(" | ")[2] in one


def test_one_metric_is_drawn(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run"))
    figure = runpy.run_path(str(SCRIPT))["figure"]
    whole, part = figure(run, "accuracy"), figure(run, "accuracy", "bent")
    assert whole.startswith(b"\x89PNG")
    assert whole != part
    for wrong in (("speed",), ("accuracy", "crooked")):
        with pytest.raises(InputError, match=f"has no {wrong[-1]}; give "):
            figure(run, *wrong)


def test_a_run_without_variants_has_reasons(results: Print, tmp_path: Path) -> None:
    text = results(write_run(tmp_path / "run", WITHOUT_VARIANTS))
    assert "| Claim | Verdict | Published | Why |" in text
    assert "| Bent is more accurate than Plain. | **holds** | " in text
    assert "| bent averages" in text


def test_claims_of_several_runs(results: Print, tmp_path: Path) -> None:
    runs = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    assert results("--show", "side-by-side", *runs).splitlines()[0].endswith("/b |")
    lines = results("--show", "verdicts", *runs).splitlines()
    assert lines[0] == "| Run | holds | fails | undecided | not measured |"
    assert lines[2].split(" | ", 1)[1] == lines[3].split(" | ", 1)[1]


def test_means_of_several_runs(results: Print, tmp_path: Path) -> None:
    both = write_run(tmp_path / "both")
    plain = write_run(tmp_path / "plain", WITHOUT_VARIANTS)
    text = results("--show", "means", "--metrics", "loss,accuracy", both, plain)
    note, lines = text.split("\n\n")[0], text.split("\n\n")[1].splitlines()
    assert note.startswith("Mean over the trials ± half-width of its 95 % interval.")
    assert lines[0] == f"| Model | {both}, Iris | {both}, Wine | {plain} |"
    assert lines[2] == "| **loss** |  |  |  |"
    bent = next(line.split(" | ") for line in lines if line.startswith("| bent | "))
    trials = RESULTS["load"](plain).values("bent", "loss").values()
    mean = float(bent[3].split(" ")[0].strip("*"))
    assert mean == pytest.approx(sum(trials) / len(trials), rel=0.01)


def test_means_of_one_run_and_one_metric(results: Print, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = results("--show", "means", "--metrics", "loss", run).split("\n\n")[1].splitlines()
    assert lines[0] == "| loss | Iris | Wine |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| plain", "| bent", "| round"]
    cells = results("--show", "results", "--metrics", "loss", run)
    assert f"| bent | {lines[3].split(' | ')[1]} |" in cells


def test_tests_of_some_models(results: Print, tmp_path: Path) -> None:
    text = results("--show", "tests", "--models", "plain,bent", write_run(tmp_path / "run"))
    assert text.count("| bent − plain | ") > 0
    assert "round" not in text


@pytest.mark.parametrize("form", ["figures", "draws"])
def test_tables_of_the_gaussian_study(results: Print, tmp_path: Path, form: str) -> None:
    folders = []
    for seed, dim in enumerate((2, 10)):
        folder = write_run(tmp_path / f"{dim}-d", WITHOUT_VARIANTS)
        facts = {"target_variance": 0.4, "condition_number": 100.0 / dim}
        basins = {"local minimum": 2, "zero residual": 8}
        edit(folder / "config.json", lambda r, s=seed: r.update(seed=s))
        edit(folder / "config.json", lambda r, d=dim: r["options"].update(dim=d))
        row = {"model": "abs", "metric": "train_mse", "mean": 0.12, "n": 10, "ci95": [0.1, 0.14]}
        row |= {"published": 0.05, "min": 0.0, "max": 0.5}
        outcome = {"model": "abs", "trials": 10, "statuses": {"done": 10}, "basins": basins}
        new = {"facts": facts, "rows": [row], "outcomes": [outcome]}
        edit(folder / "summary.json", lambda r, new=new: r.update(new))
        folders.append(folder)
    lines = results("--show", form, *folders).splitlines()
    if form == "figures":
        assert lines[0].startswith("|  | Model | 2-D here | Published | Differs by | 10-D here |")
        assert "| 0.120 ± 0.020 | 0.0500 | DLN |" in lines[2]
        assert "| 2 local minimum, 8 zero residual | – |" in lines[3]
    else:  # ordered by condition number
        assert lines[2].startswith("| 1 | 10 | 0.120 ± 0.020 | 0 to 0.500 | – |")
        assert lines[3].startswith("| 0 | 50 |")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none",), "no such folder"),
        (("--show", "tabels", "RUN"), "tabels: unknown part; give command, results"),
        (("--models", "bowed", "RUN"), "run has no bowed; give "),
    ],
)
def test_errors_are_one_line(
    results: Print,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(SystemExit) as caught:
        results(*(run if word == "RUN" else word for word in arguments))
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


# --- The pages of the site --------------------------------------------------------------------

RESULTS = runpy.run_path(str(SCRIPT))
PAGES = sorted(path for path in SCRIPT.parent.rglob("*.md") if "_build" not in path.parts)
DIRECTIVE = re.compile(r"^```+\{run\} *(.+)\n((?::.*\n)*)```+$", re.MULTILINE)
FIGURE = re.compile(
    r"^```+\{run-figure\} *(\S+) +(\S+)\n(?::models:(.*)\n)?:alt: .+\n", re.MULTILINE
)
ROLE = re.compile(r"\{verdicts\}`([^`]+)`")


def requests() -> Iterator[tuple[Path, list[str], dict[str, str]]]:
    """Yield the page, the runs and the options of every directive and role."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for names, options in DIRECTIVE.findall(text):
            pairs = (line[1:].partition(":") for line in options.splitlines())
            yield page, names.split(), {name: value.strip() for name, _, value in pairs}
        for asked in ROLE.findall(text):
            source, _, names = asked.rpartition(":")
            yield page, names.split(), {"role": source}


def test_every_table_of_every_page_can_be_made() -> None:
    studies = {p.stem: p.stem for p in PAGES if p.parent.name == "studies" and p.stem != "index"}
    studies |= dict.fromkeys(("depth", "next-checks"), "representation")  # which they belong to
    for page, names, options in requests():
        names = RESULTS["runs_of"](names)
        there = all((RESULTS["RUNS"] / name).is_dir() for name in names)
        if "optional" in options and not there:
            continue
        assert there, f"{page.name} names a run that docs/runs does not have: {names}"
        if "role" in options:
            counts = RESULTS["verdict_counts"](names, options["role"])
            assert re.fullmatch(r"(\d+ [a-z]+(, )?)+", counts)
            continue
        wanted = {key: value for key, value in options.items() if key not in ("fold", "optional")}
        lines = RESULTS["render"](names, **wanted)
        sign = {"command": "```sh", "line": "- **"}.get(options.get("show", ""), "| ")
        assert any(line.startswith(sign) for line in lines), f"{page.name}: no table of {names}"
        if page.stem in studies:
            assert {RESULTS["load"](name).config.study for name in names} == {studies[page.stem]}


def test_claims_of_some_models_are_those_that_name_one() -> None:
    run = RESULTS["load"]("representation-digits")

    def keys(*models: str) -> set[str]:
        claims = RESULTS["narrowed"](run, models, ()).summary.claims
        return {claim.id.split("/")[1] for claim in claims}

    assert keys() > keys("relu-l2-neg") > {"l2-removes-the-gap"}
    assert "abs2-neg-is-worse" in keys("abs2") - keys("relu-l2-neg")


def test_verdicts_are_counted_by_source() -> None:
    claims = RESULTS["load"]("heads-full").summary.claims
    own = [c.verdict for c in claims if c.source.startswith("Interpreting Neural Networks")]
    assert 0 < len(own) < len(claims)
    counts = RESULTS["verdict_counts"](["heads-full"], "interpreting")
    assert counts.startswith(f"{own.count('holds')} hold")
    with pytest.raises(InputError, match="unknown source; give gaussian-results, interpreting"):
        RESULTS["verdict_counts"](["heads-full"], "hearsay")


def test_a_claim_counts_once_by_the_run_with_the_most_trials(monkeypatch) -> None:
    def run(trials: int, verdict: str, **options: object) -> SimpleNamespace:
        claims = [
            SimpleNamespace(id=name, source="", data="", verdict=verdict) for name in ("a", "b")
        ]
        claims[1].verdict = "not measured" if trials > 5 else verdict
        return SimpleNamespace(
            config=SimpleNamespace(study="x", options={"trials": trials, **options}),
            study=SimpleNamespace(name="x", pools=options.get("pools", True), claims=()),
            summary=SimpleNamespace(claims=claims),
            all_trials={},
        )

    runs = {
        "few": run(5, "undecided", seed=0, models=["relu", "abs"]),
        "many": run(10, "holds", seed=1, models=["relu"]),
        "long": run(10, "fails", epochs=9),
    }
    monkeypatch.setitem(RESULTS["verdict_counts"].__globals__, "load", runs.get)
    assert RESULTS["verdict_counts"](["many", "few"]) == "1 holds, 1 undecided"
    assert RESULTS["verdict_counts"](["few", "many", "long"]) == "1 holds, 1 fails, 1 undecided"
    for one in runs.values():
        one.study.pools = False  # there another seed is another problem
    assert RESULTS["verdict_counts"](["few", "many"]) == "1 holds, 2 undecided"


def test_a_run_without_some_models_does_not_undo_a_verdict(monkeypatch) -> None:
    faster = Claim("faster", "", every(Lower("loss", name, "relu") for name in ("abs", "square")))
    models = dict.fromkeys(("relu", "abs", "square"))
    study = SimpleNamespace(name="x", pools=True, models=models, model=None, claims=(faster,))

    def run(trials: int, verdict: str, *names: str) -> SimpleNamespace:
        claim = SimpleNamespace(id="x/faster/iris", source="", data="iris", verdict=verdict)
        return SimpleNamespace(
            config=SimpleNamespace(study="x", options={"trials": trials, "models": names}),
            study=study,
            summary=SimpleNamespace(claims=[claim]),
            all_trials={"iris": {"loss": {name: {0: 1.0} for name in names}}},
        )

    runs = {
        "whole": run(5, "holds", *models),
        "some": run(10, "undecided", "relu", "abs"),
        "failed": run(15, "fails", "relu", "abs"),
        "more": run(20, "undecided", *models),
    }
    monkeypatch.setitem(RESULTS["verdict_counts"].__globals__, "load", runs.get)
    count = RESULTS["verdict_counts"]
    assert count(["some"]) == "1 undecided"
    assert count(["whole", "some"]) == count(["some", "whole"]) == "1 holds"
    assert count(["whole", "failed"]) == "1 fails"  # one part that fails decides
    assert count(["whole", "more"]) == "1 undecided"
    parts = every(Lower("loss", f"{name} (iris)", "relu (iris)") for name in ("abs", "square"))
    study.claims = lambda options: (Claim("faster", "", parts, each=False),)
    study.config = dict[str, Any]
    for one in runs.values():  # claims on a whole run name models with their variant
        one.summary.claims[0].id, one.summary.claims[0].data = "x/faster", ""
    assert count(["whole", "some"]) == "1 holds"


def test_every_figure_of_every_page_can_be_drawn() -> None:
    drawn = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for run, metric, models in FIGURE.findall(text):
            assert RESULTS["figure"](run, metric, models).startswith(b"\x89PNG")
            drawn += 1
        assert text.count("{run-figure}") == len(FIGURE.findall(text)), "give each figure an :alt:"
    assert drawn


def test_every_committed_run_is_used() -> None:
    used = {name for _, names, _ in requests() for name in names}
    assert {path.name for path in RESULTS["RUNS"].iterdir() if path.is_dir()} <= used


PAGE = """# Page

```{run} gaussian-2d
:show: results
:models: abs
:fold: Results & more
```

```{run} not-run-yet
:optional:
```

Verdicts: {verdicts}`gaussian-2d`.

```{run-figure} gaussian-2d train_mse
:models: abs, relu
:alt: Errors of two models

Twenty *trials* each.
```
"""


WRONG = {
    "folder": ("```{run} nowhere\n```", "nowhere: no such folder"),
    "part": ("```{run} gaussian-2d\n:show: tabels\n```", "tabels: unknown part"),
    "role": ("{verdicts}`nowhere`", "nowhere: no such folder"),
    "figure": ("```{run-figure} gaussian-2d speed\n```", "gaussian-2d has no speed"),
}


@pytest.mark.slow
def test_the_site_has_the_tables_and_warns_of_wrong_requests(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser"):
        pytest.importorskip(module)
    settings = f"import sys\nsys.path.append({str(SCRIPT.parent / '_ext')!r})\n"
    settings += "extensions = ['myst_parser', 'runs']\n"
    (tmp_path / "conf.py").write_text(settings, encoding="utf-8")
    pages = {
        name: f"---\norphan: true\n---\n# Page\n\n{text}\n" for name, (text, _) in WRONG.items()
    }
    for name, text in {"index": PAGE, **pages}.items():
        (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
    build = [sys.executable, "-m", "sphinx", "-q", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(build, capture_output=True, text=True, check=True)
    warnings = done.stderr.splitlines()
    assert len(warnings) == len(WRONG), done.stderr
    for name, (_, message) in WRONG.items():
        assert any(f"{name}.md" in line and message in line for line in warnings), done.stderr
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<details><summary>Results &amp; more</summary>" in page
    assert re.search(r"<td[^>]*><p>MD_Abs</p></td>", page)
    assert "MD_ReLU" not in page
    assert re.search(r"Verdicts: \d+ hold", page)
    assert re.search(r'<img alt="Errors of two models" src="[^"]+gaussian-2d-train_mse.png"', page)
    assert "<em>Twenty <em>trials</em> each.</em>" in page
    assert (tmp_path / "out" / "_images" / "gaussian-2d-train_mse.png").stat().st_size > 10_000
