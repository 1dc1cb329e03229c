"""The same files and the same image on every node: downloaded once, copied over the fast link,
compared by hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sparkbook.checkpoint.store import KEPT, cache_name, repositories
from sparkbook.cluster.inventory import Inventory, Node
from sparkbook.cluster.nodes import SSH_OPTIONS, Runner, Site, look, run_on, words_on
from sparkbook.cluster.rules import FAB
from sparkbook.cluster.sighting import Seen
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.serve.stack import Stack, pinned_reference
from sparkbook.util import limits
from sparkbook.util.inside import UnsafePath, checked
from sparkbook.util.shell_text import mark_home, script_line


def model_place(stack: Stack) -> str | None:
    """Return where every node has the files of a stack's model, with `{store}` for its store; None
    where it ships with this package.
    """
    if stack.recipe is None or not (found := repositories(stack.recipe)):
        return None
    first = found[0]
    return first.folder or "{store}/" + cache_name(first.repo)


def stage(
    inventory: Inventory,
    image: str | None,
    model: str | None,
    *,
    fetch: Callable[[], object] | None = None,
    run: Runner = run_on,
    say: Callable[[str], None] = lambda _line: None,
) -> tuple[list[Site], Findings]:
    """Put image and model files on every node, from what the head has.

    Args:
        inventory: the nodes.
        image: reference; each node pulls it, where it lacks it or has another one than the head.
        model: folder of the model's files, or of its repository, with `{store}` for each node's
            model store.
        fetch: downloads the files on the head, where it is this machine and lacks them.
        run, say: the way to a node; called with a line for each step.

    Returns:
        The nodes as they are afterwards, with hashes of contents, and what still differs.

    Raises:
        SparkbookError: a node can't be reached, the head lacks the files, or a copy failed.
    """
    sites = look(inventory, image=image, model=model, run=run)
    if problems := [f"{site.host}: {site.problem}" for site in sites if site.problem]:
        raise SparkbookError("not staged, a node can't be reached: " + "; ".join(problems))
    if model and sites[0].model == "not there" and fetch and inventory.head.local:
        say(f"fetching on {inventory.head.host}")
        fetch()
        sites[0] = look(
            inventory.model_copy(update={"nodes": [inventory.head]}),
            image=image,
            model=model,
            run=run,
        )[0]
    if model and sites[0].model == "not there":
        raise SparkbookError(
            f"{inventory.head.host} lacks {model}: run 'sparkbook weights fetch' there first"
        )
    moved = False
    for node, site in list(zip(inventory.nodes, sites, strict=True)):
        if image and (site.image == "not there" or site.image != sites[0].image):
            say(f"pulling {image} on {node.host}")
            pulled = run(node, ["docker", "pull", "--quiet", pinned_reference(image)])
            if pulled.code:
                raise SparkbookError(
                    f"{node.host} can't pull {image}: {(pulled.err or pulled.out)[-300:]}"
                )
            moved = True
        if model and site.model != sites[0].model:
            say(f"copying the model from {inventory.head.host} to {node.host}")
            copy(inventory.head, node, site, model)
            moved = True
    sites = look(inventory, image=image, model=model, run=run) if moved else sites
    found = FAB.judge(Seen(inventory, sites))
    return sites, Findings(
        finding for finding in found if finding.rule in ("FAB201", "FAB202", "FAB203")
    )


def copy(head: Node, node: Node, site: Site, model: str) -> None:
    """Copy a folder from the head to a node, over the node's address on the fast network; what the
    head lacks is removed there.

    rsync goes on where it stopped; tar does not, and needs nothing.

    Raises:
        SparkbookError: the copy failed.
        UnsafePath: the folder is outside the model store, or is more than one model's.
    """
    _in_store(model)
    source, target = (mark_home(model.replace("{store}", one.store)) for one in (head, node))
    pack = script_line("tar", "-C", source, "-cf", "-", ".")
    fresh = " && ".join(
        (
            script_line("rm", "-rf", target),
            script_line("mkdir", "-p", target),
            script_line("tar", "-C", target, "-xf", "-"),
        )
    )
    if node.ssh is None:
        words = [
            "bash",
            "-o",
            "pipefail",
            "-c",
            f"{pack} | {script_line(*words_on(node, ['sh', '-c', fresh]))}",
        ]
    else:
        user, at, rest = node.ssh.rpartition("@")
        host, _, port = rest.partition(":")
        ssh = ["ssh", *SSH_OPTIONS, "-o", f"HostKeyAlias={host}", *(["-p", port] if port else [])]
        to = f"{user}{at}{site.address or host}"
        # rsync takes a path without a shell there: relative ones begin at home.
        plain = model.replace("{store}", node.store)
        remote = f"{to}:{plain[2:] if plain.startswith('~/') else plain}/"
        tar = f"{pack} | {script_line(*ssh, to, fresh)}"
        options = ("-a", "--delete", "--mkpath", "-e", script_line(*ssh))
        rsync = script_line("rsync", *options, f"{source}/", remote)
        asks = (["command", "-v", "rsync"], [*ssh, to, "command -v rsync"])
        both = " && ".join(f"{script_line(*words)} >/dev/null" for words in asks)
        words = ["bash", "-o", "pipefail", "-c", f"if {both}; then {rsync}; else {tar}; fi"]
    copy = limits.run(words_on(head, words), timeout_s=None)
    if copy.code:
        raise SparkbookError(
            f"the copy from {head.host} to {node.host} failed: {copy.err[-400:] or copy.code}"
        )


def _in_store(model: str) -> None:
    """Refuse a recipe's folder that a copy, which removes what the head lacks, must not touch."""
    for root in ("{store}/", "~/vllm/"):
        name = model.removeprefix(root)
        if name != model:
            repository = re.fullmatch("hub/models--[^/]+", checked(name))
            if repository or name.partition("/")[0] not in KEPT:
                return
    raise UnsafePath(
        f"The recipe's folder {model!a} is outside the model store: copy it to the nodes by hand."
    )
