"""The command line starts quickly: nothing heavy is loaded before it is needed."""

import json

import pytest

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "safetensors", "jinja2")

LOADED = """
import json, sys
{}
heavy = {!r}
print(json.dumps(sorted(m for m in sys.modules if m.split(".")[0] in heavy)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "code",
    [
        "import mahalens.cli",
        "import mahalens.console, mahalens.studies.gaussian.metrics, mahalens.studies.folder",
        "from mahalens.cli import main; main()",
    ],
)
def test_nothing_heavy_is_loaded(process, code):
    words = ["list"] if "main" in code else []
    outcome = process(*words, script=LOADED.format(code, HEAVY))
    assert outcome.code == 0
    assert json.loads(outcome.err) == []
    assert bool(outcome.out) == bool(words)


def test_bad_options_are_refused_before_torch_is_loaded(process, tmp_path):
    code = (
        "from mahalens.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code)"
    )
    words = ["run", "gaussian", "--trials", "0", "--out", tmp_path / "run"]
    outcome = process(*words, script=LOADED.format(code, HEAVY))
    assert outcome.out == "2\n"
    assert json.loads(outcome.err.splitlines()[-1]) == []


def test_judging_claims_needs_no_torch(process):
    code = "import mahalens.studies.gaussian.claims, mahalens.studies.claims"
    outcome = process(script=LOADED.format(code, ("torch", "matplotlib")))
    assert json.loads(outcome.err) == []
