"""Sphinx's configuration, read out of `_config.yml`: the way to build the book without
jupyter-book.

    python -m sparkbook.site build                        # assembles _build/book, and publishes
    with jupyter-book python -m sphinx -n -W -E _build/book _build/sphinx   # the same pages by
    plain Sphinx, from that folder

jupyter-book 1.x is not developed any further. This file and `_toc.yml` are all that plain Sphinx
needs in its place.
"""

from pathlib import Path

import yaml

_BOOK = yaml.safe_load((Path(__file__).parent / "_config.yml").read_text("utf-8"))

project = html_title = _BOOK["title"]
author = _BOOK["author"]
copyright = _BOOK["copyright"]
exclude_patterns = _BOOK["exclude_patterns"]

external_toc_path = "_toc.yml"
external_toc_exclude_missing = _BOOK["only_build_toc_files"]

nb_execution_mode = _BOOK["execute"]["execute_notebooks"]
myst_enable_extensions = _BOOK["parse"]["myst_enable_extensions"]
myst_url_schemes = _BOOK["parse"]["myst_url_schemes"]

html_theme = "sphinx_book_theme"
html_sourcelink_suffix = ""
numfig = True
suppress_warnings = ["myst.domains"]
globals().update(_BOOK["sphinx"]["config"])
