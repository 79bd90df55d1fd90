"""Print line and branch coverage of each room, from the data that ``make coverage`` combined."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

from coverage import Coverage

COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def room_of(path: str) -> str:
    """Return the folder of a module below ``mahalens``, ``.`` for the modules at the root."""
    below = path.replace("\\", "/").rsplit("mahalens/", 1)[-1]
    return below.split("/")[0] if "/" in below else "."


def count() -> dict[str, Counter[str]]:
    """Add up lines and branches per room; the last row is everything."""
    coverage = Coverage()
    coverage.load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.json"
        coverage.json_report(outfile=str(file))
        files = json.loads(file.read_text())["files"]
    rooms: dict[str, Counter[str]] = {}
    for path, report in sorted(files.items()):
        for room in (room_of(path), "all"):
            counts = {name: report["summary"][name] for name in COUNTS}
            rooms.setdefault(room, Counter()).update(counts)
    rooms["all"] = rooms.pop("all")
    return rooms


def share(part: int, whole: int) -> str:
    """Return a percentage with the counts behind it."""
    return f"{100 * part / whole if whole else 100:6.2f} %  {part:>6,} of {whole:>6,}"


if __name__ == "__main__":
    print(f"{'room':<10} {'lines':<26} {'branches':<26}")
    for room, counts in count().items():
        lines, statements, branches, exits = (counts[name] for name in COUNTS)
        print(f"{room:<10} {share(lines, statements)}   {share(branches, exits)}")
