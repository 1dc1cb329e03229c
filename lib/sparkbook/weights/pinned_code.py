"""The files of a recipe's prepare steps. They are code as a rule, so they are taken only with a
known checksum.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from sparkbook.recipes.schema import PrepareStep
from sparkbook.util import origins
from sparkbook.util.inside import Inside
from sparkbook.weights.hub_client import USUAL_HUB, Hub
from sparkbook.weights.layout import digest_of
from sparkbook.weights.rules import WeightsError, fail

_LONGEST_CODE = 2**26  # bytes of a file that a prepare step fetches


_NOTED = "sparkbook-files.json"  # in the store: hashes of prepare-step files that no source pins


def prepared_file(
    hub: Hub, store: Inside, step: PrepareStep, root: Inside, name: str, unpinned: bool
) -> Path:
    """Fetch one file by its address. It is code as a rule, so it is taken only with the checksum
    that was pinned or noted before.
    """
    assert step.url
    target = root.path(name)
    known = step.sha256 if step.sha256 != "unknown" else _noted(store).get(step.url)
    if known and root.size(name) is not None:
        with root.open(name) as file:
            if digest_of(file, known) == known:
                return target
    if problem := unpinned_problem(target.name, step.url, known, unpinned):
        raise problem
    contents = hub.read(_mirrored(hub, step.url), step.url, _LONGEST_CODE)
    digest = hashlib.sha256(contents).hexdigest()
    if problem := changed_problem(target.name, known, digest):
        raise problem
    root.write(name, contents)
    if step.sha256 == "unknown":
        with store.locked(f".{_NOTED}.lock"):
            noted = {**_noted(store), step.url: digest}
            store.write(_NOTED, (json.dumps(noted, indent=2, sort_keys=True) + "\n").encode())
    return target


def _mirrored(hub: Hub, url: str) -> str:
    """Return a file's address on the hub that is in use, where the recipe names the usual one."""
    if not origins.same_origin(url, USUAL_HUB):
        return url
    path = url.partition("://")[2].partition("/")[2]
    return f"{hub.endpoint}/{path}"


def unpinned_problem(name: str, url: str, known: str | None, allowed: bool) -> WeightsError | None:
    """Return whether code is to be fetched that nothing is known of."""
    if known is not None or allowed:
        return None
    branch = ", and its address names a branch" if re.search(r"/(main|master)/", url) else ""
    return fail("HUB013", f"{name} is code without a checksum{branch}; it was not fetched.", url)


def changed_problem(name: str, known: str | None, found: str) -> WeightsError | None:
    """Return whether code is not what was pinned."""
    if known in (None, found):
        return None
    return fail(
        "HUB012",
        f"{name} is not the file that was pinned; it was not written.",
        f"sha256 {found}, pinned {known}",
    )


def _noted(store: Inside) -> dict[str, str]:
    try:
        value = json.loads(store.read(_NOTED))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
