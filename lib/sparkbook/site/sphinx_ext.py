"""What the book adds to Sphinx itself: it knows two settings that jupyter-book always passes on,
and lets pages be read side by side.

The settings belong to extensions that the book leaves out (comments on pages, LaTeX), and Sphinx
warns about one that nobody declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; Sphinx calls this."""
    app.add_config_value("comments_config", {}, "html", dict)
    app.add_config_value("use_jupyterbook_latex", False, "", bool)
    app.connect("config-inited", _read_side_by_side)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read_side_by_side(app: Sphinx, _config: object) -> None:
    """jupyter-book always loads an extension that numbers sections after all pages are read; that
    it doesn't mind how, it forgot to say.
    """
    if numbering := app.extensions.get("sphinx_multitoc_numbering"):
        numbering.parallel_read_safe = True
