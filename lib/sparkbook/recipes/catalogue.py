"""Reading recipes: from the catalogue next to this file, or from a file of the user's own.

A recipe may say `extends: ID` and then only what differs: mappings merge key by key, anything else
replaces, and null takes a key out. Its `variants` say in the same way what differs in the line as
it was published, and in one that is clean for a current release; these are `ID@as-published` and
`ID@lint-clean`. `ids` does not list them: they are views of one recipe. What every `lint-clean`
variant shares is in `_lint-clean.yaml`. A file whose name begins with an underscore is a base to
extend and not a recipe by itself.

A recipe that extends another one is not obsolete because that one is: `successor` is not inherited.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import json
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sparkbook.errors import SparkbookError
from sparkbook.recipes.schema import VARIANTS, Recipe
from sparkbook.util import documents, invalid, limits

CATALOGUE = Path(__file__).parent / "catalogue"
SCHEMA_FILE = Path(__file__).parent / "recipe.schema.json"
_MAX_BYTES = 1_000_000


class RecipeError(SparkbookError):
    """A recipe that cannot be used: not found, not readable, or not valid."""


class _Loader(documents.BoundedLoader):
    """YAML without explicit tags, and with an error where a key is given twice (YAML itself would
    silently keep the last).
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' is given twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def ids() -> list[str]:
    """Ids of the catalogue's recipes, sorted, the embedded ones last."""
    found = [_id_of(path) for path in CATALOGUE.rglob("*.yaml") if not path.name.startswith("_")]
    return sorted(found, key=lambda name: (name.startswith("embedded/"), name))


def all() -> list[Recipe]:
    """Every recipe of the catalogue.

    Raises:
        RecipeError: one of the files is not a valid recipe.
    """
    return [load(name) for name in ids()]


def load(name: str | Path) -> Recipe:
    """The recipe with this id, or the one in this file.

    Raises:
        RecipeError: no such recipe (the message names the closest ids), or its file is not a valid
            recipe (the message names the file, the key and the allowed values).
    """
    if isinstance(name, Path) or name.endswith((".yaml", ".yml")):
        file = Path(os.path.expanduser(name))  # noqa: PTH111 (leaves alone what it can't expand, where Path would raise)
        if not file.is_file():
            there = os.path.lexists(file) and _no_file(str(file))
            raise RecipeError(there or f"there is no recipe file {file}")
        return _build(file)
    name, _, variant = name.partition("@")
    path = _path_of(name)
    if path is None or path.name.startswith("_"):
        close = difflib.get_close_matches(name, ids(), n=3, cutoff=0.4)
        hint = (
            f"did you mean {', '.join(close)}?"
            if close
            else "'sparkbook recipes list' shows them all"
        )
        raise RecipeError(_no_file(name) or f"there is no recipe '{name}'; {hint}")
    return _cached(path, path.stat().st_mtime_ns, variant).model_copy(deep=True)


def _no_file(name: str) -> str | None:
    """What to say where a file seems to be meant and not a recipe's id."""
    path = os.path.expanduser(name)  # noqa: PTH111 (leaves alone what it can't expand)
    with contextlib.suppress(ValueError):
        if os.path.isdir(path):  # noqa: PTH112
            return f"{name} is a folder: name a file, or a recipe's id"
        if os.path.isfile(path):  # noqa: PTH113
            return None
        if os.path.lexists(path):
            there = Path(path).exists()
            kind = "a device, a pipe or a socket" if there else "a link to nothing"
            return f"{name} can't be read: it is {kind}"
    return (
        f"there is no file {name}"
        if name.startswith((".", "/", "~"))
        or name.endswith((".txt", ".sh", ".json", ".log", ".gguf"))
        else None
    )


@functools.lru_cache(maxsize=256)
def _cached(path: Path, _changed_ns: int, variant: str) -> Recipe:
    return _build(path, variant)


def _id_of(path: Path) -> str:
    return path.relative_to(CATALOGUE).with_suffix("").as_posix()


def _path_of(name: str) -> Path | None:
    if "\0" in name or len(name) > 200:
        return None
    path = CATALOGUE / f"{name}.yaml"
    inside = path.resolve().is_relative_to(CATALOGUE.resolve())
    return path if inside and _is_file(path) else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


def _build(path: Path, variant: str = "") -> Recipe:
    data = _merged(path, ())
    return _valid(_varied(data, variant) if variant else data, _show(path))


def validate(data: dict[str, Any], name: str) -> Recipe:
    """The recipe that these keys make; `extends` names a recipe of the catalogue.

    Args:
        data: the keys of a recipe file.
        name: what to call it in messages.

    Raises:
        RecipeError: they make no valid recipe, or extend one that there is not.
    """
    data = _renamed(copy.deepcopy(data))
    if (base := data.pop("extends", None)) is not None:
        path = _path_of(str(base))
        if path is None:
            raise RecipeError(f"{name}: extends: there is no recipe '{base}'")
        data = merge(_merged(path, ()), data)
    return _valid(data, name)


def _valid(data: dict[str, Any], name: str) -> Recipe:
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in invalid.problems(error, data, Recipe))
        raise RecipeError(f"{name} is not a valid recipe:\n{problems}") from None


def _varied(data: dict[str, Any], variant: str) -> dict[str, Any]:
    """A variant's data."""
    known = [name for name, patch in data.get("variants", {}).items() if patch is not None]
    if variant not in known:
        raise RecipeError(
            f"{data['id']} has no variant '{variant}'; it has {', '.join(known) or 'none'}"
        )
    patch = data.pop("variants")[variant]
    if variant == "lint-clean":
        patch = merge(_read(CATALOGUE / "_lint-clean.yaml"), patch)
    return merge(data, patch) | {
        "id": f"{data['id']}@{variant}",
        "title": f"{data['title']}, {VARIANTS[variant]}",
    }


def _show(path: Path) -> str:
    """A path as the user would write it."""
    return (
        path.relative_to(CATALOGUE.parent).as_posix()
        if path.is_relative_to(CATALOGUE)
        else str(path)
    )


def _merged(path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    """The file's data with what it extends underneath."""
    if path in chain:
        raise RecipeError(
            f"{_show(path)} extends itself: {' -> '.join(p.stem for p in (*chain, path))}"
        )
    data = _read(path)
    base_name = data.pop("extends", None)
    if base_name is None:
        return data
    base_path = _path_of(str(base_name))
    if base_path is None:
        sibling = path.parent / f"{base_name}.yaml"
        base_path = sibling if _is_file(sibling) else None
    if base_path is None:
        raise RecipeError(f"{_show(path)}: extends: there is no recipe '{base_name}'")
    base = _merged(base_path, (*chain, path))
    if not base_path.name.startswith("_"):
        # How another recipe was published, and that it is obsolete, says nothing about this one.
        base.get("variants", {}).pop("as-published", None)
        base.pop("successor", None)
    return merge(base, data)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = limits.read_text(path, most=_MAX_BYTES)
    except SparkbookError as error:
        raise RecipeError(str(error)) from None
    try:
        if "&" in text and any(
            isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, _Loader)
        ):
            raise RecipeError(f"{_show(path)}: YAML aliases are not read; use extends")
        if "!" in text and (tagged := _tagged(text)):
            raise RecipeError(
                f"{_show(path)} is not valid YAML for a recipe: the tag {tagged} is not read; write"
                " the value as it is"
            )
        data = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{_show(path)} is not valid YAML: {_one_line(error)}") from None
    except ValueError as error:
        # PyYAML makes dates while it reads, and lets datetime complain of an impossible one.
        raise RecipeError(f"{_show(path)} is not valid YAML: {error}") from None
    except RecursionError:
        raise RecipeError(f"{_show(path)} is nested too deeply") from None
    if not isinstance(data, dict):
        raise RecipeError(f"{_show(path)} holds {documents.kind_of(data)}, not keys of a recipe")
    return _renamed(data)


def _renamed(data: dict[str, Any]) -> dict[str, Any]:
    """The keys with today's names: `model.license` was spelled `licence` until November 2026."""
    model = data.get("model")
    if isinstance(model, dict) and "licence" in model and "license" not in model:
        model["license"] = model.pop("licence")
    return data


def _tagged(text: str) -> str | None:
    """The first value's explicit tag."""
    nodes = (
        event
        for event in yaml.parse(text, _Loader)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
    )
    return next(
        (
            event.tag
            for event in nodes
            if event.tag and not (isinstance(event, yaml.ScalarEvent) and event.tag == "!")
        ),
        None,
    )


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + (getattr(error, "problem", None) or str(error).splitlines()[0])


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings merge, anything else replaces, null removes."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
            # A null that removes nothing is a value: env's null passes a variable on, a fact's null
            # says unknown.
            if key not in base:
                result[key] = None
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merge(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def json_schema() -> str:
    """The JSON Schema (draft 2020-12) of a recipe file with everything it extends merged in."""
    schema = Recipe.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Spark vLLM playbook recipe, version 1"
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
