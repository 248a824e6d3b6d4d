"""How many steps a run takes, and the learning-rate schedule over them."""

from __future__ import annotations

from heed.config import TrainConfig
from heed.train.optimizers.schedules import Schedule, schedule

DEFAULT_EPOCHS = 20
MAX_DEFAULT_WARMUP = 400


def count_steps(settings: TrainConfig, steps_per_epoch: int) -> int:
    """The number of steps: `steps` or `epochs`, whichever ends first."""
    epochs = settings.epochs or (DEFAULT_EPOCHS if settings.steps is None else None)
    ends = [settings.steps, epochs and epochs * steps_per_epoch]
    return min(end for end in ends if end)


def count_warmup(settings: TrainConfig, steps: int) -> int:
    """The number of warm-up steps; unset, a tenth of all, at most 400."""
    if settings.warmup is None:
        return min(MAX_DEFAULT_WARMUP, steps // 10)
    return min(settings.warmup, steps)


def build_schedule(settings: TrainConfig, steps: int) -> Schedule:
    """The learning-rate schedule of a run of so many steps."""
    return schedule(
        settings.schedule,
        warmup=count_warmup(settings, steps),
        steps=steps,
        floor=settings.lr_floor,
    )
