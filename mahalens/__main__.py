"""``python -m mahalens`` is the command ``mahalens``."""

from mahalens._stopping import run_command

run_command()
