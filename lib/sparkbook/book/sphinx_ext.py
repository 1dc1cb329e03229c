"""The one thing that the book adds to Sphinx itself: it knows two settings that jupyter-book always passes on.

They belong to extensions that the book leaves out (comments on pages, LaTeX), and Sphinx warns about a setting that nobody declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("comments_config", {}, "html", dict)
    app.add_config_value("use_jupyterbook_latex", False, "", bool)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
