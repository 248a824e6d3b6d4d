"""Notes on a run: a text file in its folder, written as a whole, never over someone else's."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from heed.errors import RunError
from heed.files import open_regular, write_atomic
from heed.lab.error_responses import CONFLICT, StatusError
from heed.lab.lab_context import Lab
from heed.lab.run_watch import NOTES
from heed.runs.run import Run

MOST_CHARACTERS = 20_000

router = APIRouter(prefix="/api")


class NotesBody(BaseModel):
    """New notes, and the version of those that they replace."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=MOST_CHARACTERS)]
    version: str | None = None
    """As it was read; the new notes are refused if it is another one by now."""


@router.get("/run/{name:path}/notes")
def show_notes(lab: Lab, name: str) -> dict[str, Any]:
    """The notes on a run."""
    return read_notes(lab.folder.run(name))


@router.put("/run/{name:path}/notes")
def replace_notes(lab: Lab, name: str, body: NotesBody) -> dict[str, Any]:
    """Replace the notes on a run; an empty text deletes them."""
    return write_notes(lab.folder.run(name), body.text, body.version)


def read_notes(run: Run) -> dict[str, Any]:
    """The text of the notes, and its version; empty where there are none."""
    path = run.folder / NOTES
    if path.is_symlink() or not path.is_file():
        return {"text": "", "version": None}
    with open_regular(path) as file:
        data = file.read(4 * MOST_CHARACTERS + 1)
    text = data.decode("utf-8", "replace")
    if len(text) > MOST_CHARACTERS:
        what = f"these notes are longer than {MOST_CHARACTERS:,} characters."
        raise RunError(what, where=str(path), todo="Shorten them in an editor.")
    return {"text": text, "version": blake2b(data, digest_size=8).hexdigest()}


def write_notes(run: Run, text: str, version: str | None) -> dict[str, Any]:
    """Write the notes if they are still of this version; returns them as they are read now."""
    path, before = run.folder / NOTES, read_notes(run)
    if before["version"] != version and before["text"] != text:
        raise StatusError(
            "these notes were changed elsewhere since they were read here.",
            status=CONFLICT,
            where=str(path),
            todo="Copy your text, read the page again, and add it.",
        )
    if text:
        write_atomic(path, text.encode("utf-8", "replace"))
    else:
        path.unlink(missing_ok=True)
    return read_notes(run)
