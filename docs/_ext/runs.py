"""Puts tables and figures of committed runs into pages, when the site is built.

In a page (MyST Markdown)::

    ```{run} gaussian-2d
    :show: command, results, claims
    :models: abs, relu
    :metrics: train_mse, sphericity
    :fold: All tests
    ```

names one or several folders of ``docs/runs``, or ``all``, and what to show of them: see
``docs/results.py``, which makes the same tables in a terminal. ``:fold:`` hides them behind a title
to click; ``:optional:`` shows nothing as long as the folder is not there. In a sentence or a table
``{verdicts}`gaussian-2d gaussian-10d` `` is the count of verdicts, and with the key of a source,
``{verdicts}`interpreting: clusters` ``, of those on its claims. A figure of the study's report
by its name, or one of a metric with all trials, means and published means; and its caption::

    ```{run-figure} ellipsoids-full final_error
    :models: elliptical, spherical
    :alt: Errors of two distances beside the published ones

    Five trials of each.
    ```
"""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

sys.path.insert(0, str(Path(__file__).parents[1]))
import results

from mahalens.errors import MahalensError


class RunTables(SphinxDirective):
    """The directive ``run``: tables of one or several runs."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {  # noqa: RUF012
        **dict.fromkeys(("show", "models", "metrics", "fold"), directives.unchanged_required),
        "optional": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Return the tables as nodes of the page."""
        names = results.runs_of(self.arguments[0].split())
        folders = [results.RUNS / name for name in names]
        for folder in folders:
            self.env.note_dependency(str(folder / "summary.json"))
        if "optional" in self.options and not all(folder.is_dir() for folder in folders):
            return []
        wanted = {name: self.options.get(name, "") for name in ("show", "models", "metrics")}
        try:
            lines = results.render(names, **wanted)
        except MahalensError as error:
            raise self.error(str(error)) from None
        block = nodes.container(classes=["run"])
        self.state.nested_parse(StringList(lines, source="docs/runs"), 0, block)
        if "fold" not in self.options:
            return block.children
        title = html.escape(self.options["fold"])
        return [
            nodes.raw("", f"<details><summary>{title}</summary>", format="html"),
            *block.children,
            nodes.raw("", "</details>", format="html"),
        ]


class RunFigure(SphinxDirective):
    """The directive ``run-figure``: a figure of a run."""

    required_arguments = 2
    has_content = True
    option_spec = {"models": directives.unchanged, "alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return the figure with its caption."""
        run, name = self.arguments
        self.env.note_dependency(str(results.RUNS / run / "summary.json"))
        try:
            png = results.figure(run, name, self.options.get("models", ""))
        except MahalensError as error:
            raise self.error(str(error)) from None
        drawn = Path("_build", "figures", f"{run}-{name}.png")
        path = Path(self.env.srcdir) / drawn
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)
        image = nodes.image(uri=f"/{drawn.as_posix()}", alt=self.options.get("alt", name))
        caption = nodes.emphasis()
        inline, messages = self.state.inline_text(" ".join(self.content), self.lineno)
        caption += inline
        return [nodes.paragraph("", "", image), nodes.paragraph("", "", caption), *messages]


class Verdicts(SphinxRole):
    """The role ``verdicts``: the claims of some runs, counted."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the counts as text."""
        source, _, runs = self.text.rpartition(":")
        try:
            return [nodes.Text(results.verdict_counts(runs.split(), source))], []
        except MahalensError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]


def setup(app: Sphinx) -> dict[str, Any]:
    """Make directives and role known."""
    app.add_directive("run", RunTables)
    app.add_directive("run-figure", RunFigure)
    app.add_role("verdicts", Verdicts())
    return {"version": "1", "parallel_read_safe": True}
