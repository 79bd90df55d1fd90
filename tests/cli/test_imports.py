"""The command line starts quickly: nothing heavy is loaded before it is needed."""

import json

import pytest

SCRIPT = """
import contextlib, io, json, sys
import mahalens.cli

loaded = {}
heavy = set(sys.argv.pop().split())
for command in sys.argv.pop().split(";"):
    sys.argv[1:] = command.split()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            mahalens.cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    modules = {name.split(".")[0] for name in sys.modules}
    loaded[command] = [code, sorted(modules & heavy)]
print(json.dumps(loaded))
"""
HEAVY = "torch scipy sklearn matplotlib safetensors jinja2"
FETCHING = "pooch requests"


@pytest.mark.parametrize(
    ("commands", "code", "heavy"),
    [
        ("--help;run --help;run gaussian --help;run transfer --help;list;list claims", 0, HEAVY),
        ("run;run gaussian --trials 0 --out x;run --resume x", 2, HEAVY),
        ("run heads --reject-rate 2 --out x;audit m.pt2 --data digits --out .", 2, HEAVY),
        ("data list;data fetch digits;data fetch -h", 0, f"{HEAVY} {FETCHING} numpy"),
        ("data fetch no", 2, f"{HEAVY} {FETCHING} numpy"),
        ("data fetch mnist --from nowhere", 2, f"{HEAVY} numpy"),
    ],
)
def test_nothing_heavy_is_loaded(process, tmp_path, monkeypatch, commands, code, heavy):
    monkeypatch.setenv("MAHALENS_DATA", str(tmp_path / "data"))
    (tmp_path / "mine.txt").write_text("no folder for an audit")
    outcome = process(commands, heavy, script=SCRIPT, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {command: [code, []] for command in commands.split(";")}
