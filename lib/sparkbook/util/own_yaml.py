"""The YAML files that this project brings along and people edit: rules, signatures, claims,
measured figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read(file: Path) -> Any:
    """Return what a file of ours holds; libyaml reads it where PyYAML was built with it, eight
    times as fast as Python does.

    Text of a user goes another way, with limits of its own: `sparkbook.util.documents.parse`.

    Raises:
        OSError, UnicodeDecodeError, yaml.YAMLError: it can't be read.
    """
    import yaml

    return yaml.load(file.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
