"""Tree-structured Parzen estimators (Bergstra et al. 2011) by Optuna, without its storage.

An Optuna study is built in memory from the settings and scores of earlier trials, asked once, and
dropped. Trials of the same round are in it as running ones, which Optuna keeps away from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from heed.errors import HeedError, install_hint
from heed.study.search.search_space import (
    Setting,
    Space,
    clean_value,
    is_listed,
    list_values,
    order_keys,
)
from heed.study.study_config import SearchRange

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial


def require_optuna() -> None:
    """Raise an error that says how to install Optuna where it is missing."""
    if find_spec("optuna") is None:
        raise HeedError(
            'method = "tpe" needs Optuna, which is not installed.',
            where="[search]",
            todo=f'{install_hint("study")} Or set method = "random".',
        )


def suggest_setting(
    space: Space,
    fixed: Mapping[str, Any],
    ended: Sequence[tuple[Setting, float | None]],
    running: Sequence[Setting],
    seed: int,
) -> Setting:
    """The setting that TPE proposes next.

    `ended` are earlier settings with their scores, larger for better, None where a trial failed or
    was pruned: those count as the worst. `running` are settings of the same round.
    """
    require_optuna()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    states = optuna.trial.TrialState
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=1, seed=seed, multivariate=True, constant_liar=True
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials(
        [
            _build_trial(space, setting, states.PRUNED if score is None else states.COMPLETE, score)
            for setting, score in ended
        ]
        + [_build_trial(space, setting, states.RUNNING, None) for setting in running]
    )
    trial = study.ask()
    setting: Setting = {}
    for key in order_keys(space):
        if space[key].allows({**fixed, **setting}):
            setting[key] = _suggest_value(trial, key, space[key])
    return setting


def _build_trial(space: Space, setting: Setting, state: Any, score: float | None) -> FrozenTrial:
    import optuna

    return optuna.trial.create_trial(
        state=state,
        value=score,
        params={key: _encode(space[key], value) for key, value in setting.items()},
        distributions={key: _distribution(space[key]) for key in setting},
    )


def _distribution(one: SearchRange) -> BaseDistribution:
    """Optuna's form of a range. Values of a list are known to it by their places."""
    from optuna import distributions

    if one.choices is not None:
        return distributions.CategoricalDistribution(range(len(one.choices)))
    if one.step is not None:
        return distributions.IntDistribution(0, len(list_values(one)) - 1)
    low, high = one.bounds
    if one.is_integer:
        return distributions.IntDistribution(int(low), int(high), log=one.log)
    return distributions.FloatDistribution(low, high, log=one.log)


def _suggest_value(trial: Trial, key: str, one: SearchRange) -> Any:
    if one.choices is not None:
        return one.choices[trial.suggest_categorical(key, range(len(one.choices)))]
    if one.step is not None:
        values = list_values(one)
        return values[trial.suggest_int(key, 0, len(values) - 1)]
    low, high = one.bounds
    if one.is_integer:
        return trial.suggest_int(key, int(low), int(high), log=one.log)
    return clean_value(one, trial.suggest_float(key, low, high, log=one.log))


def _encode(one: SearchRange, value: Any) -> Any:
    return list_values(one).index(value) if is_listed(one) else value
