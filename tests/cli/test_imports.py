"""The command line starts quickly: nothing heavy is loaded before it is needed."""

import json

import pytest

SCRIPT = """
import contextlib, io, json, sys
import mahalens.cli

heavy = ("torch", "scipy", "sklearn", "matplotlib", "safetensors", "jinja2")
loaded = {}
for command in sys.argv.pop().split(";"):
    sys.argv[1:] = command.split()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            mahalens.cli.main()
            code = 0
        except SystemExit as end:
            code = end.code
    modules = {name.split(".")[0] for name in sys.modules}
    loaded[command] = [code, sorted(modules & set(heavy))]
print(json.dumps(loaded))
"""


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        ("--help;run --help;run gaussian --help;run transfer --help;list;list claims;data list", 0),
        ("run;run gaussian --trials 0 --out x;run heads --reject-rate 2 --out x;run --resume x", 2),
    ],
)
def test_nothing_heavy_is_loaded(process, tmp_path, commands, code):
    outcome = process(commands, script=SCRIPT, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    loaded = json.loads(outcome.out)
    assert loaded == {command: [code, []] for command in commands.split(";")}
