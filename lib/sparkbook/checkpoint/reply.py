"""What a hub answers, as far as it is believed: a schema between its words and everything else."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkbook.errors import SparkbookError
from sparkbook.util import invalid

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MOST_BYTES = 2**25
"""Of one reply. The listing of 10,000 files is about 3 MB."""


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Large(_Reply):
    """Of a file that the hub keeps apart from git."""

    sha256: Sha256


class Sibling(_Reply):
    """A file of a repository: `size` in bytes, `blobId` git's own hash of a small one."""

    rfilename: str
    size: Annotated[int, Field(ge=0, le=2**50)] | None = None
    blobId: Commit | None = None  # noqa: N815 (the hub's name)
    lfs: Large | None = None


class Listing(_Reply):
    """A repository at one commit, as `/api/models/NAME/revision/REVISION?blobs=true` lists it.
    (https://huggingface.co/docs/hub/api)
    """

    sha: Commit
    siblings: list[Sibling] = Field(default_factory=list, max_length=200_000)


def listing(text: bytes) -> Listing:
    """Read a hub's list of a repository's files. The names are not yet checked as paths.

    Raises:
        SparkbookError: it is something else; the message is half a sentence, with the first place
            that is wrong.
    """
    try:
        return Listing.model_validate_json(text)
    except ValidationError as error:
        raise SparkbookError(invalid.reason(error)) from None
