"""Experiment trackers that receive the metrics: TensorBoard, Weights & Biases, MLflow.

Each is optional, and imported only if a recipe names it (`train.track`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from typing import Any, Protocol

from heed.config.checks import missing_tracker
from heed.errors import ConfigError
from heed.runs.run import Run


class Tracker(Protocol):
    """Receives the metrics of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir RUN`."""

    def __init__(self, run: Run) -> None:
        writer = _module("tensorboard", "torch.utils.tensorboard").SummaryWriter
        self._writer = writer(log_dir=str(run.folder / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush the event files."""
        self._writer.close()


class WandB:
    """A Weights & Biases run, named like the folder."""

    def __init__(self, run: Run) -> None:
        self._run = _module("wandb").init(
            project="heed", name=run.folder.name, dir=str(run.folder), config=run.recipe().tables()
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """An MLflow run, named like the folder."""

    def __init__(self, run: Run) -> None:
        self._mlflow = _module("mlflow")
        self._mlflow.start_run(run_name=run.folder.name)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of one step."""
        named = {name.replace("/", "."): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


TRACKERS: dict[str, type[TensorBoard | WandB | MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


@contextmanager
def open_trackers(names: Sequence[str], run: Run) -> Iterator[list[Tracker]]:
    """Open the trackers of a recipe; they are closed on exit."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(TRACKERS[name](run))) for name in names]


def _module(package: str, name: str | None = None) -> Any:
    try:
        return import_module(name or package)
    except ImportError:
        raise ConfigError([missing_tracker(package)]) from None
