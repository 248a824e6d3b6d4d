"""Learning-rate schedules: pure functions from the step to a factor on the base rate.

The number of steps that a recipe's schedule spans is counted here as well.

Steps are counted from 0, so the first step of a run is step 0 and the last `steps - 1`. Every
schedule rises linearly to 1 over `warmup` steps, then follows its own curve. Decaying ones reach
`floor` after the last step: neither the first nor the last step has a rate of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from heed.config.base import unknown_name
from heed.config.train import SCHEDULES, TrainConfig
from heed.errors import ConfigError

Schedule = Callable[[int], float]
DEFAULT_EPOCHS = 20
MAX_DEFAULT_WARMUP = 400


def _constant(progress: float) -> float:
    """Flat."""
    return 1.0


def _linear(progress: float) -> float:
    """A straight line down, as BERT's (Devlin et al., 2019)."""
    return 1.0 - progress


def _cosine(progress: float) -> float:
    """(1 + cos πt) / 2: SGDR without restarts (Loshchilov and Hutter, 2017)."""
    return (1.0 + math.cos(math.pi * progress)) / 2.0


def _one_less_root(progress: float) -> float:
    """1 - √t: the cool-down that Hägele et al. (2024) found best after a stable phase."""
    return 1.0 - math.sqrt(progress)


_CURVES = {"constant": _constant, "linear": _linear, "cosine": _cosine, "wsd": _one_less_root}


def schedule(
    name: str, *, warmup: int, steps: int, floor: float = 0.0, decay_share: float = 0.2
) -> Schedule:
    """The factor on the base learning rate at each step, counted from 0.

    With w = warmup, T = steps, f = floor and t the share of the falling part that is done:

    | name           | after the warm-up, whose factor is (step + 1) / w |
    |----------------|----------------------------------------------------|
    | `constant`     | 1, whatever the floor                              |
    | `inverse_sqrt` | max(f, √(w / (step + 1))), Vaswani et al. (2017)   |
    | `cosine`       | f + (1 - f) (1 + cos πt) / 2                       |
    | `linear`       | f + (1 - f) (1 - t)                                |
    | `wsd`          | 1, then f + (1 - f) (1 - √t) over the last `decay_share` of T: |
    |                | warm-up–stable–decay, Hu et al. (MiniCPM, 2024)    |

    `inverse_sqrt` is the Transformer's rule min(n^-½, n w^-1½) divided by its peak; without a
    warm-up it falls from step 0 on, as 1 / √(step + 1).
    """
    _check(name, warmup=warmup, steps=steps, floor=floor, decay_share=decay_share)
    if name == "inverse_sqrt":
        return _warmed(warmup, lambda step: max(floor, math.sqrt(max(1, warmup) / (step + 1))))
    curve = _CURVES[name]
    if name == "constant":
        return _warmed(warmup, curve)
    falling = max(1, round(decay_share * steps)) if name == "wsd" else steps
    start = max(warmup, steps - falling)

    def fall(step: int) -> float:
        if step >= steps:
            return floor
        progress = max(0, step - start) / (steps - start)
        return floor + (1.0 - floor) * curve(progress)

    return _warmed(warmup, fall)


def _warmed(warmup: int, after: Schedule) -> Schedule:
    """A straight line from 1 / warmup to 1, then `after`."""

    def factor(step: int) -> float:
        return (step + 1) / warmup if step < warmup else after(step)

    return factor


def _check(name: str, *, warmup: int, steps: int, floor: float, decay_share: float) -> None:
    complaints: list[str] = []
    complaints += filter(None, [unknown_name("schedule", name, SCHEDULES)])
    if steps < 1:
        complaints.append(f"steps must be at least 1, not {steps}.")
    if warmup < 0:
        complaints.append(f"warmup must be 0 or more steps, not {warmup}.")
    elif warmup > steps >= 1:
        complaints.append(f"warmup is {warmup} steps, more than the {steps} steps of the run.")
    if not 0.0 <= floor <= 1.0:
        complaints.append(f"floor must be a share of the peak rate from 0 to 1, not {floor}.")
    if not 0.0 < decay_share <= 1.0:
        complaints.append(f"decay_share must be above 0 and at most 1, not {decay_share}.")
    if complaints:
        raise ConfigError(complaints)


# ------------------------------------------------------------------------------ of a run's recipe


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
