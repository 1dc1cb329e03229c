"""Content of the chapters and pages that people edit: `book/data/*.yaml`."""

from __future__ import annotations

from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter

from sparkbook.errors import SparkbookError
from sparkbook.runner.project import here
from sparkbook.util import own_yaml

FOLDER = "book/data"

_T = TypeVar("_T")


def load(name: str, shape: type[_T]) -> _T:
    """Read `book/data/NAME.yaml` as a value of a type.

    Raises:
        SparkbookError: the file can't be read, or holds something else; the message names it.
    """
    data: Any = None
    try:
        data = own_yaml.read(here().root / FOLDER / f"{name}.yaml")
        return TypeAdapter(shape).validate_python(data)
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise SparkbookError(f"{FOLDER}/{name}.yaml: {error}") from None
