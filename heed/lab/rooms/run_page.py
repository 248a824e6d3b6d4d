"""The page of a run: its report, live, with its notes.

The report's sections are the ones that `heed report` writes. Those that take long are asked for
later, and are built again only when the files that they come from have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from heed.checksums import DamagedError
from heed.errors import HeedError
from heed.lab.lab_context import Lab, LabContext
from heed.lab.rooms.run_notes import read_notes
from heed.lab.run_folder import reading
from heed.lab.run_watch import Stamp, WatchedRun
from heed.report.document import Document, Section
from heed.report.html import interactive_parts, render_sections
from heed.report.run_content import RunContent, read_run_content
from heed.report.run_report import section_builders
from heed.runs.run import refuse_unsafe_texts

SLOW = ("data", "examples", "attention")
"""Sections that read a corpus or compute with the model."""
REMEMBERED = 64
"""Slow sections that are remembered."""

router = APIRouter(prefix="/api")


@router.get("/run/{name:path}/report")
async def show_report(lab: Lab, name: str) -> dict[str, Any]:
    """The whole report of a run as sections of HTML."""
    return await lab.queue.run(build_report, lab, name, is_whole=True)


@router.get("/run/{name:path}")
async def show_run(lab: Lab, name: str) -> dict[str, Any]:
    """A run as it is now, its notes, and the sections of its report that are ready at once."""
    return await run_in_threadpool(build_page, lab, name)


def build_page(lab: LabContext, name: str) -> dict[str, Any]:
    """Everything that the page of a run shows at first."""
    with lab.watch.lock:
        run = lab.watch.find(name)
        cursor = lab.watch.log.cursor()
        groups = [group for _, group in lab.watch.groups() if run.name in group.runs]
        recipe = {"name": groups[0].name, "runs": list(groups[0].runs)} if groups else None
        entry = dict(run.entry)
    return {
        "cursor": cursor,
        "run": entry,
        "recipe": recipe,
        "notes": _read_notes(run),
        "report": build_report(lab, name, is_whole=False),
    }


def _read_notes(run: WatchedRun) -> dict[str, Any]:
    try:
        return read_notes(run.run)
    except HeedError as error:
        return {"text": "", "version": None, "problem": str(error)}


def build_report(lab: LabContext, name: str, *, is_whole: bool) -> dict[str, Any]:
    """The sections of a run's report; of one that cannot be read there is its sentence alone."""
    with lab.watch.lock:
        run = lab.watch.find(name)
        stamp, problem = run.stamp or (), run.entry["problem"]
        if problem is not None:
            return _without_sections(problem)
    try:
        with reading(name):
            content = read_run_content(run.run.folder)
            sections = []
            for section, build in section_builders().items():
                if section not in SLOW:
                    sections.append(build(content))
                elif is_whole:
                    files = _depends_on(section, stamp)
                    sections.append(_remembered(section, run.run.folder, files))
            document = describe_document(Document(f"Report on {content.name}", sections=sections))
    except DamagedError as error:
        return _without_sections(str(error))
    return document | {"problem": None, "is_whole": is_whole}


def _without_sections(problem: str | None) -> dict[str, Any]:
    """The report of a run that cannot be read."""
    return {"problem": problem, "sections": [], "parts": {}, "is_whole": True}


def _depends_on(section: str, stamp: Stamp) -> Stamp:
    """The stamps of the files that a slow section is built from."""
    recipe, environment, _, weights, checkpoints, results, *_ = stamp
    return (recipe, environment) if section == "data" else (recipe, weights, checkpoints, results)


@lru_cache(maxsize=REMEMBERED)
def _remembered(section: str, folder: Path, _stamp: Stamp) -> Section:
    """A slow section, built once for files that do not change."""
    content: RunContent = read_run_content(folder)
    refuse_unsafe_texts(content.recipe)
    return section_builders()[section](content)


def describe_document(document: Document) -> dict[str, Any]:
    """A document as JSON values: its sections as HTML, and its interactive parts."""
    html: Mapping[str, str] = render_sections(document)
    return {
        "title": document.title,
        "sections": [
            {"id": one.id, "title": one.title, "html": html[one.id]} for one in document.sections
        ],
        "parts": interactive_parts(document),
    }
