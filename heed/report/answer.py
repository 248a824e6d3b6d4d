"""The answer of a study in three parts: what was shown, what was not, and what to do next.

Where nothing was shown, it says what the design could have shown and how many seeds would show
more. "Best" stands beside Hsu's intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

from heed.report.claims import Question, format_pair_p, relation_phrases
from heed.report.wording import (
    count_of,
    format_interval,
    hull,
    join_names,
    name_level,
)
from heed.stats.comparison import MIN_SEEDS, Pair
from heed.stats.power import MAX_SEEDS
from heed.stats.verdicts import (
    Judgement,
    Verdict,
    format_differences,
    format_level,
    format_minutes,
    format_score,
)
from heed.study.finding import quote_name


def answer_question(question: Question) -> list[str]:
    """The answer in three sentences: what was shown, what was not, and what to do next."""
    if not question.comparison.pairs:
        return _answer_for_one_system(question)
    return [_tell_shown(question), _tell_open(question), _tell_next(question)]


def answer_without_runs(systems: Sequence[str]) -> list[str]:
    """The answer of a study in which no trial has finished."""
    names = join_names(systems)
    return [
        "Nothing was shown: no trial has finished.",
        f"Not shown: anything about {names}." if names else "Not shown: anything.",
        "Next: read the reasons in the table of trials. The same command goes on with trials that "
        "have not ended; a trial that failed is tried again once its file in trials/ is deleted.",
    ]


def _answer_for_one_system(question: Question) -> list[str]:
    """The answer where only one system has scores: there is nothing to compare it with."""
    [(name, values)] = question.comparison.systems.items()
    metric = question.metric
    mean, low, high = (
        format_score(float(value), metric) for value in (values.mean(), values.min(), values.max())
    )
    score = f"{metric.name} {mean} on {question.set_name}"
    if len(values) > 1:
        spread = format_score(float(values.std(ddof=1)), metric)
        score += (
            f" on average over {len(values)} seeds (standard deviation {spread}, {low} to {high})"
        )
    others = f", and {join_names(question.without_runs)} has no score" * bool(question.without_runs)
    return [
        f"Nothing was compared: {quote_name(name)} is the only system with a score, {score}.",
        f"Not shown: any difference, because there is no other system to compare it with{others}.",
        "Next: add the system to compare it with, and give every system three seeds or more.",
    ]


# ------------------------------------------------------------------------------- what was shown


def _tell_shown(question: Question) -> str:
    """The first sentence: every relation that the corrected intervals show."""
    pairs = question.pairs
    if all(judgement.verdict is Verdict.TWO_MODELS for _, judgement in pairs):
        seeds = [seeds for pair, _ in pairs for seeds in pair.seeds]
        return (
            f"Nothing was shown about recipes: with {count_of(min(seeds), 'seed')} only these "
            "models are compared; another seed can change their order."
        )
    phrases = relation_phrases(question)
    where = f"on {question.set_name} ({question.metric.name})"
    if not phrases:
        decided = [one for one in pairs if one[1].verdict is not Verdict.TWO_MODELS]
        contain = "contains" if len(decided) == 1 else "contain"
        return f"Nothing was shown {where}: {_tell_intervals(question, decided)} {contain} 0."
    word = "Shown" if question.is_declared else "Seen, exploratory"
    return f"{word} {where}: {'; '.join(phrases)}."


def _tell_intervals(question: Question, pairs: Sequence[tuple[Pair, Judgement]]) -> str:
    """`the corrected 95% interval -1.20 to +0.84`, or that which contains all."""
    span = format_interval(hull(pair.interval for pair, _ in pairs), question.metric)
    level = name_level(question.comparison)
    if len(pairs) == 1:
        return f"the {level} interval {span}"
    return f"all {len(pairs)} {level} intervals, within {span},"


# ----------------------------------------------------------------------------- what was not shown


def _tell_open(question: Question) -> str:
    """The second sentence: what the runs leave open, and what they would have shown."""
    undecided = [one for one in question.pairs if one[1].verdict is Verdict.UNDECIDED]
    models = [one for one in question.pairs if one[1].verdict is Verdict.TWO_MODELS]
    parts = []
    if undecided:
        visible = [p.smallest_visible for p, _ in undecided if p.smallest_visible is not None]
        ends = [format_score(bound, question.metric) for bound in (min(visible), max(visible))]
        parts.append(
            f"{_tell_open_pairs(question, undecided)}, where in 8 of 10 cases these runs would "
            f"show a difference of {' to '.join(dict.fromkeys(ends))} "
            f"{question.metric.difference_unit} or more"
        )
    if models:
        parts.append(_tell_models(question, models))
    if question.without_runs:
        verb = "has" if len(question.without_runs) == 1 else "have"
        parts.append(f"anything about {join_names(question.without_runs)}, which {verb} no score")
    if not parts:
        return (
            "Not shown: nothing that was asked is left open, but other data, model sizes and "
            "budgets were not tried."
        )
    return f"Not shown: {'; '.join(parts)}."


def _tell_open_pairs(question: Question, undecided: Sequence[tuple[Pair, Judgement]]) -> str:
    """`whether alibi and t5 differ from rope (intervals …)`."""
    level, metric = name_level(question.comparison), question.metric
    span = format_interval(hull(pair.interval for pair, _ in undecided), metric)
    intervals = f"intervals within {span}" if len(undecided) > 1 else f"interval {span}"
    support = f"({level} {intervals})"
    if question.baseline is not None:
        names = join_names(pair.a for pair, _ in undecided)
        verb = "differs" if len(undecided) == 1 else "differ"
        return f"whether {names} {verb} from {quote_name(question.baseline)} {support}"
    if len(undecided) == 1:
        [(pair, _)] = undecided
        return f"whether {quote_name(pair.a)} and {quote_name(pair.b)} differ {support}"
    all_pairs, count = len(question.pairs), len(undecided)
    which = f"any of {all_pairs} pairs" if count == all_pairs else f"{count} of {all_pairs} pairs"
    return f"a difference in {which} {support}"


def _tell_models(question: Question, models: Sequence[tuple[Pair, Judgement]]) -> str:
    """`which recipe scores higher: these models differ by …`."""
    metric, level = question.metric, name_level(question.comparison)
    ends = sorted(pair.difference for pair, _ in models)
    shown = " to ".join(dict.fromkeys(format_differences([ends[0], ends[-1]], metric)))
    span = format_interval(hull(pair.interval for pair, _ in models), metric)
    intervals = f"intervals within {span}" if len(models) > 1 else f"interval {span}"
    against = f" from {quote_name(question.baseline)}" if question.baseline is not None else ""
    if len(models) == 1:
        intervals += f", p {format_pair_p(models[0][0])}"
    few = dict.fromkeys(
        name
        for pair, _ in models
        for name, seeds in zip((pair.a, pair.b), pair.seeds, strict=True)
        if seeds < MIN_SEEDS
    )
    differ = f"these models differ{against} by {shown}"
    if len(models) == 1:
        [(pair, _)] = models
        differ = f"of these models, {quote_name(pair.a)} − {quote_name(pair.b)} is {shown}"
    return (
        f"anything about the recipes of {join_names(few)}; {differ} {metric.difference_unit} on "
        f"these test items ({level} {intervals})"
    )


# ------------------------------------------------------------------------------- what to do next


def _tell_next(question: Question) -> str:
    """The third sentence: what the numbers advise."""
    parts = []
    if question.without_runs:
        names = join_names(question.without_runs)
        parts.append(f"fix {names}: the table of trials gives the reasons")
    few = {
        name: seeds
        for pair in question.comparison.pairs
        for name, seeds in zip((pair.a, pair.b), pair.seeds, strict=True)
        if seeds < MIN_SEEDS
    }
    undecided = [pair for pair, one in question.pairs if one.verdict is Verdict.UNDECIDED]
    if few:
        more = sum(MIN_SEEDS - seeds for seeds in few.values())
        parts.append(
            f"train {count_of(more, 'more run')} ({MIN_SEEDS} seeds each"
            f"{_tell_duration(more, question)}) to compare the recipes"
        )
    elif undecided:
        parts.append(_advise_seeds(question, undecided))
    if choice := _tell_choice(question):
        parts.append(choice)
    return f"Next: {'; '.join(parts)}." if parts else "Next: nothing follows from these runs."


def _advise_seeds(question: Question, undecided: Sequence[Pair]) -> str:
    """How many seeds would decide the pair that needs the fewest."""
    if question.next_look is not None:
        return f"continue to the declared look at {question.next_look} seeds"
    needed = [
        (pair.seeds_needed, pair)
        for pair in undecided
        if pair.seeds_needed is not None and pair.seeds_needed > min(pair.seeds)
    ]
    if not needed:
        if any(pair.needs_items for pair in undecided):
            return "score more test items, because more seeds alone would not show what is open"
        return (
            f"leave open what is open, because more than {MAX_SEEDS} seeds each would be needed "
            "for differences as seen"
        )
    seeds, pair = min(needed, key=lambda one: one[0])
    runs = 2 * seeds  # Seeds that were looked at do not count in a study declared now.
    rest = "" if len(undecided) == 1 else "; the other open pairs need more"
    return (
        f"declare a study of {join_names([pair.a, pair.b])} with {seeds} seeds each, which would "
        "decide in 8 of 10 cases if the true difference is as seen "
        f"({count_of(runs, 'run')}{_tell_duration(runs, question)}{rest})"
    )


def _tell_choice(question: Question) -> str:
    """`choose between t5 and rope: best, or not distinguishable from the best (…)`."""
    comparison = question.comparison
    if comparison.best is None:
        return ""
    span = format_interval(hull(comparison.best_gaps.values()), question.metric)
    is_open = any(one.verdict is Verdict.UNDECIDED for _, one in question.pairs)
    choose = "until then choose" if is_open else "choose"
    level = format_level(comparison.alpha)
    scored = " of those with a score" if question.without_runs else ""
    if len(comparison.best) == 1:
        [name] = comparison.best
        return (
            f"{choose} {quote_name(name)}, the only one{scored} that may be best (Hsu's {level} "
            f"interval of its lead over the others, one-sided: {span})"
        )
    among = "between" if len(comparison.best) == 2 else "among"
    # Against a baseline, the question did not compare the others with each other.
    others = [name for name in comparison.best if name != question.baseline]
    compares = question.baseline is None or len(others) < 2
    further = "" if compares else f"; to decide {among} them, declare a study of these alone"
    return (
        f"{choose} {among} {join_names(comparison.best)} by cost: best, or not distinguishable "
        f"from the best (Hsu's {level} intervals of each minus the best of the others, within "
        f"{span}){further}"
    )


def _tell_duration(runs: int, question: Question) -> str:
    if question.minutes_per_run is None:
        return ""
    return f", {format_minutes(runs * question.minutes_per_run)}"
