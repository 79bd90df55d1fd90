"""Takes pages and links from outside docs into the site, and writes formulas as MathML.

CONTRIBUTING.md, CHANGELOG.md and SECURITY.md become pages of *Develop*. A link of a page to another
file of the repository becomes plain text, because the site has no such file.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))
import benchmarks

ROOT = Path(__file__).parents[2]
PAGES = {
    "CONTRIBUTING.md": "develop/contributing.md",
    "CHANGELOG.md": "develop/changelog.md",
    "SECURITY.md": "develop/security.md",
    "CODE_OF_CONDUCT.md": "develop/code-of-conduct.md",
}
ELSEWHERE = {"README.md": "index.md", "CITATION.cff": "cite.md"}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")


def links_for_site(text: str, source: Path, page: Path, docs: Path) -> str:
    """Return Markdown whose links are relative to a page of the site.

    ``source`` is the file that the text comes from, ``page`` the one it is shown as.
    """

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(source.parent / target))
        name = os.path.relpath(path, ROOT).replace(os.sep, "/")
        if name in PAGES or name in ELSEWHERE:
            path = docs / (PAGES.get(name) or ELSEWHERE[name])
        elif path.is_dir() or not path.is_relative_to(docs):
            return label if label.startswith("`") else f"{label} (`{name}`)"
        return f"[{label}]({os.path.relpath(path, page.parent).replace(os.sep, '/')}{anchor})"

    return _LINK.sub(replace, text)


def write_pages(app: Sphinx) -> None:
    """Write the pages that come from the top folder."""
    docs = Path(app.srcdir)
    for name, page in PAGES.items():
        path = docs / page
        text = links_for_site((ROOT / name).read_text(encoding="utf-8"), ROOT / name, path, docs)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def drop_old_examples(app: Sphinx) -> None:
    """Remove pages of examples that are gone; sphinx-gallery leaves them in no menu."""
    docs = Path(app.srcdir)
    for path in (docs / "_gallery").glob("plot_*"):
        if not (docs / "gallery" / f"{path.name.partition('.')[0]}.py").exists():
            path.unlink()


def mend_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Mend the links of a page before it is parsed, and put in the tables of benchmarks."""
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".md":
        text = benchmarks.filled(source[0])
        source[0] = links_for_site(text, path, path, Path(app.srcdir))


def inline_formula(translator: Any, node: nodes.math) -> None:
    """Write a formula within a sentence."""
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def block_formula(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect pages, links and formulas."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (block_formula, None))
    app.connect("builder-inited", write_pages)
    app.connect("builder-inited", drop_old_examples, priority=100)
    app.connect("source-read", mend_links)
    return {"version": "1", "parallel_read_safe": True}
