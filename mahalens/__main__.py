"""``python -m mahalens`` is the command ``mahalens``."""

from mahalens.cli import main

main()
