"""Runs benchmarks in their quick form, one after the other in one process, to see that they work.

    python benchmarks/quick.py NAME...

Prints the output of a benchmark only if it fails.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from importlib import import_module


def main(names: list[str]) -> None:
    """Run the benchmarks and print how long each took."""
    for name in names:
        sys.argv = [f"benchmarks/{name}.py", "--quick"]
        began, output = time.perf_counter(), io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                import_module(name).main()
        except BaseException:
            print(output.getvalue(), file=sys.stderr)
            raise
        print(f"{' '.join(sys.argv)}: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
