"""``python -m mahalens`` is the command ``mahalens``."""

import os
import sys
from pathlib import Path

here = os.getcwd()
# Python puts the current folder first on the path, where a numpy.py beside a model would be run.
if not sys.flags.safe_path and sys.path[0] == here != str(Path(__file__).parents[1]):
    del sys.path[0]

from mahalens._stopping import run_command  # noqa: E402 (after the path is as the command has it)

run_command()
