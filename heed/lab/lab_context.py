"""What the rooms of the lab share: the folder, the loaded models, the queue for computation."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends, Request

from heed.lab.limits import ComputeQueue
from heed.lab.loaded_models import LoadedModels
from heed.lab.run_folder import RunFolder
from heed.lab.run_watch import RunWatch
from heed.lab.stored_maps import StoredMaps
from heed.lab.training_queue import TrainingQueue

if TYPE_CHECKING:
    from heed.lab.head_scores import HeadScores


@dataclass
class LabContext:
    """One lab: what its rooms read, and what they compute with."""

    folder: RunFolder
    is_read_only: bool = False
    models: LoadedModels = field(default_factory=LoadedModels)
    maps: StoredMaps = field(default_factory=StoredMaps)
    head_scores: HeadScores | None = None
    """Made by the first request about heads: it needs PyTorch."""
    queue: ComputeQueue = field(default_factory=ComputeQueue)
    closing: Event = field(default_factory=Event)
    """Set when the server is to end: streams of events end then."""
    watch: RunWatch = field(init=False)
    """What is known of the runs, and the log of their changes."""

    jobs: int = 1
    """Trainings started here that run at once."""
    training: TrainingQueue = field(init=False)
    """Runs that are started, stopped and resumed here."""

    def __post_init__(self) -> None:
        self.watch = RunWatch(self.folder)
        self.training = TrainingQueue(self.folder, jobs=self.jobs)


def find_context(request: Request) -> LabContext:
    """The lab that a request is made to."""
    return cast(LabContext, request.app.state.lab)


Lab = Annotated[LabContext, Depends(find_context)]
"""A parameter of a route: `def list_runs(lab: Lab) -> …`."""
