"""What the page on starting weights shows must run, and print what it says."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "initialising.md"


def test_the_examples_run_and_print_what_the_page_says(capsys):
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    names = {}
    with torch.random.fork_rng():
        exec(compile(blocks[0], PAGE.name, "exec"), names)
        shown = re.search(r"prints\n\n```\n(.*?)```", text, re.S)[1]
        printed = capsys.readouterr().out
        # The draw of a seed may differ between versions of torch: numbers are not compared.
        assert (
            re.sub(r"\d+", "0", shown).split("(")[0] == re.sub(r"\d+", "0", printed).split("(")[0]
        )
        assert printed.splitlines()[-1] == shown.splitlines()[-1]
        for block in blocks[1:]:
            exec(compile(block, PAGE.name, "exec"), names)
    assert capsys.readouterr().out == "{'0': 'cluster_pca', '2': 'class_mean'}\n"
