"""How a study was carried out: its trials, declarations, looks at test, method and reproduction."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heed.report.claims import Question
from heed.report.document import Block, Code, Paragraph, Section, Table
from heed.report.study_figures import format_count
from heed.report.wording import (
    count_of,
    format_interval,
    join_names,
    name_level,
)
from heed.stats.verdicts import format_level, format_minutes
from heed.study.recipe_comparison import EXPLORATORY
from heed.study.study_file import StudyConfig
from heed.study.study_folder import TEXTS, Additions
from heed.study.study_results import StudyResults
from heed.study.trials import TrialState

MAX_REASONS = 20
"""Rows of the table of trials that did not finish; the rest is counted."""
STATUS_WORDS = {
    "finished": "finished",
    "failed": "failed",
    "pruned": "pruned",
    "stopped": "stopped",
    "running": "still running",
    "waiting": "not begun",
}


def describe_trials(states: Sequence[TrialState], space: Collection[str] = ()) -> Section:
    """The trials by system and status, and the reasons of those that did not finish.

    `space` are the searched keys.
    """
    columns = ["system", *(word for word in _present_statuses(states).values())]
    columns += ["minutes", "tokens"]
    rows = []
    for system in dict.fromkeys(state.trial.system for state in states):
        chosen = [state for state in states if state.trial.system == system]
        rows.append(_trial_row(system, chosen, states))
    if len(rows) > 1:
        rows.append(_trial_row("all", states, states))
    blocks: list[Block] = [
        Paragraph(_tell_totals(states)),
        Table("trials", "Trials of every system by status.", columns, rows, columns[1:]),
    ]
    ended = [state for state in states if state.status in ("failed", "pruned", "stopped")]
    if ended:
        table_rows = [
            [state.trial.name, state.status, _format_keys(state, space), _tell_reason(state)]
            for state in ended[:MAX_REASONS]
        ]
        caption = "Trials that did not finish, and why."
        if any(state.status == "stopped" for state in ended):
            caption += " The command of the study goes on with those that were stopped."
        if len(ended) > MAX_REASONS:
            caption += f" {len(ended) - MAX_REASONS} more are in `heed study FOLDER --csv`."
        names = ["trial", "status", "searched keys", "reason"]
        if not any(row[2] for row in table_rows):
            names.pop(2)
            table_rows = [[row[0], row[1], row[3]] for row in table_rows]
        blocks.append(Table("unfinished", caption, names, table_rows))
    return Section("trials-section", "Trials", blocks)


def _tell_reason(state: TrialState) -> str:
    """Why a trial did not finish, without the command that goes on with its run alone."""
    return (state.reason or "no reason known").partition(" Continue with: ")[0]


def _present_statuses(states: Sequence[TrialState]) -> dict[str, str]:
    present = {state.status for state in states}
    return {status: word for status, word in STATUS_WORDS.items() if status in present}


def _trial_row(label: str, chosen: Sequence[TrialState], states: Sequence[TrialState]) -> list[str]:
    counts: Counter[str] = Counter(state.status for state in chosen)
    minutes = sum(state.minutes or 0.0 for state in chosen)
    tokens = sum(state.tokens or 0 for state in chosen)
    cells = [str(counts[status]) for status in _present_statuses(states)]
    return [label, *cells, f"{minutes:,.2f}", format_count(tokens)]


def _format_keys(state: TrialState, space: Collection[str]) -> str:
    """The searched keys of a trial; nothing for trials that are told by system and seed."""
    if state.trial.stage == "final":
        return ""
    changes = state.trial.changes
    return ", ".join(f"{key}={_short(changes[key])}" for key in space if key in changes)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tell_totals(states: Sequence[TrialState]) -> str:
    finished = sum(state.status == "finished" for state in states)
    minutes = sum(state.minutes or 0.0 for state in states)
    tokens = sum(state.tokens or 0 for state in states)
    text = f"{finished} of {count_of(len(states), 'trial')} finished"
    if minutes:
        text += f", in {format_minutes(minutes)} of training and evaluation"
    return text + (f" over {format_count(tokens)} training tokens." if tokens else ".")


# ------------------------------------------------------------------------- declared, exploratory


def describe_declarations(results: StudyResults, question: Question | None) -> Section:
    """What was fixed before training, what was added or asked later, and the looks at test."""
    declared, additions = results.declared, results.additions
    metric = declared.metric or (question.metric.name if question else "the task's first")
    sets = join_names(declared.sets) or "dev"
    against = (
        f"every system against {declared.baseline}" if declared.baseline else "all pairs of systems"
    )
    margin = "none" if declared.margin is None else f"{declared.margin:g}"
    if declared.margin is not None and question is not None:
        margin += f" {question.metric.difference_unit}"
    seeds = count_of(len(declared.seeds), "seed") + f" ({', '.join(map(str, declared.seeds))})"
    rows = [
        ["metric", metric],
        ["sets for final scores", sets],
        ["comparisons", against],
        ["margin that matters", margin],
        ["seeds of every system", seeds],
        ["seeds compared as pairs", "yes" if declared.paired_seeds else "no"],
    ]
    if declared.looks:
        places = ", ".join(map(str, declared.looks))
        rows.append(["looks at the results", f"at {places} seeds, by Pocock's levels"])
    if declared.search is not None:
        search = declared.search
        keys = ", ".join(search.space)
        trials = "all combinations" if search.method == "grid" else count_of(search.trials, "trial")
        rows.append(["search for every system", f"{search.method}, {trials}: {keys}"])
        finalists = f"{search.finalists}, with {count_of(search.finalist_seeds, 'new seed')} each"
        rows.append(["finalists on dev", finalists])
    limits = {key: value for key, value in declared.budget.model_dump().items() if value}
    if limits:
        rows.append(["budget", ", ".join(f"{value:g} {key}" for key, value in limits.items())])
    blocks: list[Block] = [
        Table("declared", "What was declared before training.", ["declared", "value"], rows)
    ]
    blocks += [Paragraph(text, "note") for text in _tell_additions(additions)]
    notes = [] if results.comparison is None else results.comparison.exploratory_notes
    blocks += [
        Paragraph(f"The comparison is exploratory: {note.removeprefix(EXPLORATORY)}", "note")
        for note in notes
    ]
    blocks += [Paragraph(text) for text in _tell_looks(results)]
    if notes:
        text = (
            "So no part of this report is a test of a declared question. What the comparison and "
            "the analysis find is worth a study of its own."
        )
    else:
        text = (
            "The comparisons of the declared metric, set and systems are the declared question. "
            "The analysis asks further questions of the same runs; they are exploratory, and what "
            "they find is worth a study of its own."
        )
    blocks.append(Paragraph(text))
    return Section("declared-section", "Declared and exploratory", blocks)


def _tell_looks(results: StudyResults) -> list[str]:
    """How often each set was evaluated, and which of the declared looks this is."""
    finals = sum(len(system.finished) for system in results.systems)
    chosen = " Settings were chosen on dev." if results.config.search is not None else ""
    texts = []
    for name, count in results.looks.items():
        once = ": once each" if count == finals else ""
        texts.append(
            f"Looks at {name}: it was evaluated {count_of(count, 'time')} for "
            f"{count_of(finals, 'final trial')}{once}.{chosen}"
        )
    if results.look is not None:
        texts.append(f"{results.look}")
    return texts


def _tell_additions(additions: Additions) -> list[str]:
    texts = []
    for entry in additions.entries:
        when = datetime.fromtimestamp(entry["time"], UTC).strftime("%Y-%m-%d %H:%M UTC")
        parts = [
            f"{key if len(values) == 1 else f'{key}s'} {', '.join(map(_name_addition, values))}"
            for key in ("seed", "system")
            if (values := entry.get(f"{key}s"))
        ]
        if grid := entry.get("grid"):
            parts += [f"{key} {', '.join(map(str, values))}" for key, values in grid.items()]
        if parts:
            what = "; ".join(parts)
            texts.append(f"Added after the study was declared, on {when}: {what}.")
        if changed := [key for key in TEXTS if key in entry]:
            verb = "was" if changed in (["title"], ["question"], ["author"]) else "were"
            texts.append(
                f"The {' and '.join(changed)} {verb} written anew on {when}; the study file below "
                "has what was declared."
            )
    return texts


def _name_addition(value: Any) -> str:
    return str(value["name"]) if isinstance(value, Mapping) else str(value)


# -------------------------------------------------------------------------- method, reproduction


def describe_method(question: Question, signature: str | None, notes: Sequence[str]) -> Section:
    """The estimator, the correction, and what is taken as independent, in one short section.

    `notes` are those of the comparison. What they say of declarations stands elsewhere.
    """
    comparison, metric = question.comparison, question.metric
    paired = "pairs" if comparison.paired_seeds else "not pairs"
    if comparison.clustered:
        independent = f"the {comparison.units:,} groups of test items are taken as independent"
    else:
        independent = (
            f"the {comparison.items:,} test items are taken as independent, because no groups such "
            "as talks are known"
        )
    texts = [
        f"A difference is that of {metric.name} over all of {question.set_name}, averaged over "
        "seeds. Its variance adds what another seed and what other test items would change "
        "(two-way clustering; Cameron, Gelbach and Miller 2011), by jackknife pseudo-values of "
        f"the metric. Runs of one seed are {paired}; {independent}. Interval and p come from "
        "Student's t with Satterthwaite's degrees of freedom."
    ]
    if comparison.variances.pooled:
        texts.append(
            "All systems share one variance over seeds, pooled: Bartlett's test does not show that "
            "theirs differ (p of at least 0.01). So their intervals are about equally wide, "
            "whatever the spread of each one's few seeds."
        )
    if len(comparison.pairs) > 1:
        texts.append(
            f"The {len(comparison.pairs)} comparisons are one family: their "
            f"{name_level(comparison)} intervals and p-values hold for all together (single-step "
            "max-t; Hothorn, Bretz and Westfall 2008)."
        )
    if comparison.best is not None and comparison.pairs:
        texts.append(
            "Which systems may be best is Hsu's comparison with the best (1984). It is one-sided, "
            "so it may single one out where the interval of a pair still contains 0."
        )
    texts.append(
        "The difference that these runs would show, and the seeds that one would need, are for "
        "80% power at the corrected level, with the variances as estimated."
    )
    blocks: list[Block] = [Paragraph(text) for text in texts]
    if comparison.best is not None and len(comparison.best) > 1:
        blocks.append(_best_table(question))
    said_above = (
        "Interval and p",
        "Intervals and p-",
        "Items are taken",
        "Declared",
        "Exploratory",
    )
    blocks += [Paragraph(note, "note") for note in notes if not note.startswith(said_above)]
    if signature:
        blocks.append(Paragraph(f"{metric.name}: {signature}", "note"))
    return Section("method", "How it was computed", blocks)


def _best_table(question: Question) -> Table:
    """Hsu's interval of every system that may be best."""
    metric, comparison = question.metric, question.comparison
    rows = [[name, format_interval(gap, metric)] for name, gap in comparison.best_gaps.items()]
    level = format_level(comparison.alpha)
    columns = ["system", f"Hsu's {level} interval"]
    caption = (
        f"Hsu's comparison for the systems that the answer names: {metric.name} of each minus the "
        "best of the others."
    )
    return Table("best", caption, columns, rows, columns[1:])


def describe_reproduction(
    folder: Path,
    declared: StudyConfig,
    states: Sequence[TrialState],
    environments: Sequence[Mapping[str, Any]],
) -> Section:
    """The command, the study file, versions and machines."""
    text = declared.toml()
    name = declared.name or folder.name
    made = f"runs/{name}-quick" if declared.is_quick else f"runs/{name}"
    command = "heed study study.toml"
    if any(state.trial.added for state in states):
        command += "  # and the additions above"
    blocks: list[Block] = [
        Paragraph("Save the study below as study.toml, and run:"),
        Code(f"{command}\nheed report {shlex.quote(made)}"),
        Code(text.rstrip("\n")),
    ]
    if declared.set.get("train.evaluate_test") is False:
        blocks.append(
            Paragraph(
                "train.evaluate_test = false: training does not evaluate test. The study does, "
                "once for each final trial.",
                "note",
            )
        )
    rows = [[key, ", ".join(values)] for key, values in _describe_environments(environments)]
    machines = sorted({state.machine for state in states if state.machine})
    if machines:
        rows.append(["machines", ", ".join(machines)])
    started = [state.started for state in states if state.started]
    ended = [state.ended for state in states if state.ended]
    if started and ended:
        dates = [datetime.fromtimestamp(at, UTC) for at in (min(started), max(ended))]
        rows.append(["trained", " to ".join(f"{at:%Y-%m-%d %H:%M} UTC" for at in dates)])
    if rows:
        caption = "Versions and machines."
        blocks.append(Table("environment", caption, ["what", "value"], rows))
    return Section("reproduction", "Reproduction", blocks)


def _describe_environments(
    environments: Sequence[Mapping[str, Any]],
) -> list[tuple[str, list[str]]]:
    """Every version and device that occurs, by what it is of."""
    values: dict[str, dict[str, None]] = {}
    for environment in environments:
        plain = {key: environment.get(key) for key in ("python", "gpu", "cuda", "commit")}
        plain = {**environment.get("packages", {}), **plain}
        for key, value in plain.items():
            if value:
                values.setdefault(key, {})[str(value)[:60]] = None
    return [(key, sorted(texts)) for key, texts in values.items()]
