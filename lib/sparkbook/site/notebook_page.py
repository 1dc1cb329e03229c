"""An executed notebook as a page of the site."""

from __future__ import annotations

from typing import Any

from sparkbook.register import claims
from sparkbook.runner import notebooks
from sparkbook.runner.pages import Page
from sparkbook.site import badges, claims_page
from sparkbook.util.markup import literal


def as_published(page: Page, register: bool = True) -> dict[str, Any]:
    """Return the executed notebook as Sphinx gets it; `register` is whether the book has the claims
    register.

    A generated page gets its own heading in place of the template's, and shows the parameters that
    it was run with, not those that they replaced. A picture gets its alternative text: the one its
    output carries, else the sentence above the cell. A figure drawn from the claims register leads
    to the claim's row, under the heading stands what the page's numbers were taken on, and at the
    end which claims it uses.
    """
    notebook = notebooks.read(page.out)
    above, seen = "", set[str]()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            above = cell["source"].strip() or above
            cell["source"] = claims_page.on_site(cell["source"], seen=seen)
        else:
            _describe_pictures(cell, above)
            for output in cell["outputs"]:
                output.get("data", {}).pop(
                    claims.MIME, None
                )  # a record for the build, nothing to show
    if page.title is not None:
        _retitle(notebook, page.title)
    _badge(notebook, badges.of_page(page, notebook))
    if register and (uses := claims_page.uses(page.name)):
        notebook["cells"].append(
            {"cell_type": "markdown", "id": "claims-used", "metadata": {}, "source": uses}
        )
    return notebook


def _badge(notebook: dict[str, Any], badges: str) -> None:
    """Put the badges right under the page's heading."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and cell["source"].startswith("# "):
            heading, _, rest = cell["source"].partition("\n")
            cell["source"] = f"{heading}\n\n{badges}\n{rest}"
            return


def _describe_pictures(cell: dict[str, Any], above: str) -> None:
    pictures = [
        output
        for output in cell["outputs"]
        if any(kind.startswith("image/") for kind in output.get("data", {}))
    ]
    if not pictures or cell["metadata"].get("mystnb", {}).get("image", {}).get("alt"):
        return
    given = [
        about.get("alt")
        for output in pictures
        for kind, about in output["metadata"].items()
        if kind.startswith("image/")
    ]
    # The last line: the sentence right above the cell. A line break or a quote would end the
    # attribute.
    text = " ".join(alt for alt in given if alt) or next(iter(above.splitlines()[-1:]), "Figure")
    settings = cell["metadata"].setdefault("mystnb", {})
    settings["image"] = {
        **settings.get("image", {}),
        "alt": " ".join(text.replace("`", "").replace("*", "").split()),
    }


def _retitle(notebook: dict[str, Any], title: str) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and cell["source"].startswith("# "):
            cell["source"] = "\n".join([f"# {literal(title)}", *cell["source"].splitlines()[1:]])
            break
    if any("injected-parameters" in notebooks.tags(cell) for cell in notebook["cells"]):
        for cell in notebook["cells"]:
            if "parameters" in notebooks.tags(cell):
                cell["metadata"]["tags"] = ["parameters", "remove-cell"]
