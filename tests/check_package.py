"""Build the package, install it in an empty environment and try it: ``make package``.

First without extras: the library works, and what needs an extra says so in one line. Then with
``[all]``: the README's examples print what the README shows, numbers aside (tests/test_readme.py
compares those). An example that needs fetched data is skipped, with a message, if it cannot be had.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "package"
DIST = WORK / "dist"
PYTHON = WORK / "venv" / "bin" / "python"
COMMAND = PYTHON.with_name("mahalens")
FETCHED = ("cifar10", "efficientnet-lite0")  # that an example may name

SLIM = """
import sys, tempfile
import torch
import mahalens
from mahalens import ellipsoids

torch.manual_seed(0)
x = torch.cat([torch.randn(200, 6), torch.randn(200, 6) + 4])
y = torch.arange(2).repeat_interleave(200)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
trained = mahalens.fit([model], x, y, loss="cross-entropy", epochs=30, lr=0.01).stack[0]
record = mahalens.audit(trained, (x, y))
assert [layer.units_count for layer in record.layers] == [8, 2]
mahalens.prune(trained, record, x)
detector = mahalens.detect_features(x, y, rate=0.05)
far = torch.tensor([50.0, -50.0]).repeat(3)
assert detector.reject_features(x + far).all() and not detector.reject_features(x).all()
assert mahalens.detect(trained, (x, y)).reject(x).shape == (400,)
classes = ellipsoids.from_data(x, y, kind="full")
assert (classes.nearest(x).indices[:, 0] == y).float().mean() > 0.9

extras = {
    "report": [
        lambda: mahalens.build_report(tempfile.mkdtemp()),
        lambda: mahalens.report.write_audit_report(record, tempfile.mkdtemp()),
        lambda: mahalens.fit([model], x, y, loss="cross-entropy", epochs=1, progress=True),
    ],
    "sklearn": [
        lambda: mahalens.load_set("digits"),
        lambda: mahalens.audit(trained, x, clusters=2),
    ],
}
for extra, calls in extras.items():
    for call in calls:
        try:
            call()
        except mahalens.InputError as error:
            assert f"pip install 'mahalens[{extra}]'" in str(error), error
            assert "\\n" not in str(error), error
        else:
            raise AssertionError(f"worked without the extra {extra}")
optional = {"matplotlib", "rich", "click", "sklearn", "joblib", "PIL", "pandas", "onnx"}
assert not optional & set(sys.modules), optional & set(sys.modules)
"""


def run(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in an empty folder, so that nothing of the repository is imported."""
    place = WORK / "empty"
    place.mkdir(exist_ok=True)
    done = subprocess.run([*map(str, words)], cwd=place, capture_output=True, text=True)
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, words))[:200]}\n{done.stdout}{done.stderr}")
    return done


def build() -> Path:
    """Build both archives, check them, and return the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    archives = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    (wheel,) = DIST.glob("*.whl")
    (source,) = DIST.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    strange = {name.split("/")[0] for name in names if ".dist-info/" not in name} - {"mahalens"}
    relative = re.findall(r"\]\((?!https?:|#)[^()\s]+\)", re.sub(r"(?s)```.*?```", "", text))
    missing = {"mahalens/py.typed", "mahalens/report/templates/report.html.j2"} - set(names)
    with tarfile.open(source) as archive:
        parts = {name.partition("/")[2] for name in archive.getnames()}
    missing |= {"README.md", "hatch_build.py", "tests/check_package.py"} - parts
    if strange or relative or missing:
        sys.exit(f"strange in the wheel: {strange}; relative links: {relative}; missing: {missing}")
    return wheel


def install(wheel: Path, extra: str = "") -> None:
    """Install the wheel with an extra, at the pinned versions."""
    constraints = ROOT / "constraints.txt"
    run(
        PYTHON, "-m", "pip", "install", "-q", "-c", constraints, f"mahalens{extra} @ file://{wheel}"
    )


def try_without_extras() -> None:
    """Use the library; the command must refuse in one line."""
    run(PYTHON, "-W", "error", "-c", SLIM)
    refused = run(COMMAND, "--help", check=False)
    line = r"mahalens: the command line needs [\w, -]+; pip install 'mahalens\[cli\]'\n"
    if refused.returncode != 2 or refused.stdout or not re.fullmatch(line, refused.stderr):
        sys.exit(f"the command without its extra: {refused}")


def try_examples() -> int:
    """Run the README's examples; return how many were skipped."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"(?s)```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", text)
    if len(examples) != 3:
        sys.exit(f"the README has {len(examples)} examples with their output; expected 3")
    skipped = 0
    for code, shown in examples:
        needs = [name for name in FETCHED if name in code]
        fetched = [run(COMMAND, "data", "fetch", name, check=False) for name in needs]
        if failed := [done.stderr for done in fetched if done.returncode]:
            print(f"SKIPPED an example of the README, which needs {needs}: {failed[0].strip()}")
            skipped += 1
            continue
        printed = run(PYTHON, "-c", code).stdout
        if _without_numbers(printed) != _without_numbers(shown):
            sys.exit(f"the README shows\n{shown}\nbut its example prints\n{printed}")
    return skipped


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d,.]*", "N", text)


def main() -> None:
    """Do all of it."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    wheel = build()
    print(f"built and checked: {', '.join(path.name for path in sorted(DIST.iterdir()))}")
    venv.create(PYTHON.parent.parent, with_pip=True)
    install(wheel)
    try_without_extras()
    print("without extras: the library works, the command names its extra")
    install(wheel, "[all]")
    skipped = try_examples()
    print(f"with [all]: {3 - skipped} of 3 examples of the README run")
    shutil.rmtree(PYTHON.parent.parent)


if __name__ == "__main__":
    main()
