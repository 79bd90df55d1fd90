"""Settings of the documentation site; ``make docs`` builds it."""

import sys
from pathlib import Path

from sphinx_gallery.sorting import FunctionSortKey

import mahalens

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mahalens"
author = "the mahalens authors"
copyright = f"2026, {author}"
version = release = mahalens.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "names",  # these are ours, in _ext
    "commands",
    "notebooks",
    "rooms",
    "runs",
    "site_pages",
]
exclude_patterns = ["_build", "_ext", "benchmarks", "examples", "gallery", "runs"]
nitpicky = False  # names of torch and numpy are not documented here

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72
napoleon_use_rtype = False
napoleon_use_ivar = True

gallery_order = [
    "plot_audit_pretrained.py",
    "plot_prune.py",
    "plot_unknown_images.py",
    "plot_hyperplanes.py",
    "plot_eigenvectors.py",
    "plot_collapse.py",
    "plot_known_clusters.py",
    "plot_ellipsoids.py",
]
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "_gallery",
    "within_subsection_order": FunctionSortKey(gallery_order.index),
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 0,
    "write_computation_times": False,
    "show_signature": False,
}
suppress_warnings = ["config.cache"]  # sphinx-gallery's settings hold functions

html_theme = "furo"
html_title = "mahalens"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_exclude = ".linenos, .gp, .go"
