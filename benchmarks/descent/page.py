"""The page of results, in Markdown, from figures alone: its sentences say what the figures say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reading import OTHERS, Facts, place
from ted.tables import table
from ted.words import chance, listed, number, opened

from descent.systems import BEYOND, FRESH_SEEDS, LABELS, PLAIN, REFERENCE, RULES, TASKS, Task
from descent.telling import SAME, Telling

HEAD = """# Optimizers

Each with as many learning rates to try, on one task of classification and one of language
modelling. This page is generated, tables and sentences both.
`python benchmarks/optimizers.py train --data DIR --runs RUNS` trains; this wrote the page:

```sh
python benchmarks/optimizers.py report --runs RUNS
```

All figures: [`optimizers.json`](../../benchmarks/results/optimizers.json)."""
HOW = f"""## How they are compared

- **Rates.** All try the same ones, half a decade apart, with seed 0. If any optimizer is best at an
  edge, all of that task try one rate more on that side, {BEYOND} on a side at most. So all have as
  many trials, and nobody's range was picked for it.
- **Choice.** The best evaluation on dev decides: accuracy for classification, loss for language
  modelling; of equals the lower rate.
- **Seeds.** What is told of the chosen rates comes from {len(FRESH_SEEDS)} fresh seeds
  ({listed([str(seed) for seed in FRESH_SEEDS])}); ± is their standard deviation. The test set was
  looked at with these models alone.
- **The same for all**: model, text, batches, number of updates, warm-up over a tenth of them and
  then a rate that falls to zero in a line, gradients clipped to norm 1, no running mean of the
  weights. Momenta and betas are each rule's own. Weight decay is 0.01 where a rule keeps it apart
  from the gradient (AdamW, Muon, Lion) and none where it would be a part of it, as in torch's
  defaults: without that, Adam and AdamW would be one rule. Muon moves hidden matrices, and the
  AdamW in it the rest, at one rate.
- **Tests.** Against {LABELS[REFERENCE]}: a bootstrap of the test texts, each drawn with the answers
  of all models (would they differ on other texts?), and Welch's t-test over seeds (with other
  seeds?). To call two different is to say yes twice, so the larger p counts, corrected for the
  number of comparisons in its table (Holm 1979). On dev there is Welch's test alone. Three seeds
  are few: "no difference shown" is no proof that there is none."""


class Page:
    """Figures on their way to a page."""

    def __init__(self, figures: Facts, pictures: Sequence[str]) -> None:
        self.figures, self.pictures = figures, pictures
        self.tasks = [
            (task, Telling(task, figures["tasks"][task.name]))
            for task in TASKS
            if task.name in figures["tasks"]
        ]

    def text(self) -> str:
        """The whole page."""
        if not self.tasks:
            return f"{HEAD}\n\nNothing is trained yet.\n"
        parts = [opened(HEAD, list(self._opening())), *self._found(), HOW, *self._machine()]
        for task, telling in self.tasks:
            parts += [*self._about(task, telling)]
        return "\n\n".join(parts) + "\n"

    def _opening(self) -> Iterator[str]:
        """What was found, in at most five sentences."""
        for task, telling in self.tasks:
            one, own = (telling.own[key].get(PLAIN) for key in ("at_one_rate", "at_own_rate"))
            if one and own:
                yield (
                    f"On {task.title}, SGD's gain over {LABELS[REFERENCE]} in dev {task.unit} is "
                    f"{telling.gain(one['gain'])} at one learning rate for all and "
                    f"{telling.gain(own['gain'])} at each optimizer's own."
                )
            compared = telling.own["on_test"]
            shown = [name for name in compared if telling.verdict(name) != SAME]
            told = [f"{LABELS[name]} is {telling.verdict(name)}" for name in shown]
            rest = f"for {len(compared) - len(shown)} of {len(compared)} no difference is shown"
            if compared:
                yield f"On its test set, at their own rates, {listed([*told, rest])}."

    def _found(self) -> Iterator[str]:
        """One paragraph, and the figure that it is about."""
        yield "## What was found"
        said = [telling.finding() for _, telling in self.tasks]
        yield " ".join(said)
        for name in self.pictures:
            rates = " and ".join(sorted({f"{t.own['shared_rate']:g}" for _, t in self.tasks}))
            yield f"![Dev by learning rate; by update, at one rate and at each one's own]({name})"
            yield (
                "*Above: the best evaluation on dev at each rate, one seed, the best ringed; "
                f"dotted, the rate for all. Below: the way there, mean of {len(FRESH_SEEDS)} fresh "
                f"seeds and a band from the lowest to the highest, all at {rates} and each at its "
                "own best. Heights compare within a column.*"
            )

    def _machine(self) -> Iterator[str]:
        machine = self.figures["machine"]
        if not machine:
            return
        others = machine.get(OTHERS)
        yield (
            f"Trained on: {place(machine)}; {machine['jobs']} runs side by side with "
            f"{machine['threads']} thread each; torch {machine['torch']}, "
            f"Python {machine['python']}, float32. By "
            f"`{machine['command']}`."
            + (f" Some of the runs: {'; '.join(others)}." if others else "")
        )

    def _about(self, task: Task, telling: Telling) -> Iterator[str]:
        """One task: what changes, the test, and every rate."""
        yield f"## {task.title}"
        changes = ", ".join(f"`{change}`" for change in task.changes)
        yield f"`{task.recipe}` with {changes}. {telling.test_set()}".rstrip()
        yield "### One rate for all, and each its own"
        yield self._two_ways(task, telling)
        if rows := list(_tested(telling)):
            yield "### Test, each at its own rate"
            names = ["optimizer", "rate", f"test {task.unit}", "95%", "clean"]
            names += [] if task.rises else ["bits a byte"]
            names += ["gain", "95%", "p, texts", "p, seeds", "p, corrected", "it says"]
            yield "\n\n".join(filter(None, [table(names, rows), telling.on_test()]))
        yield "### Every rate that was tried"
        yield _every_rate(telling)
        yield from telling.remarks()

    def _two_ways(self, task: Task, telling: Telling) -> str:
        """Dev at the shared rate and at one's own, each beside the reference."""
        own, shared = telling.own, f"{telling.own['shared_rate']:g}"
        columns = ["optimizer", f"dev at {shared}", "gain", "p, corrected", "own rate"]
        columns += ["dev at its own", "gain", "p, corrected", "rates as good", "seconds"]
        rows = []
        for rule in RULES:
            told = own["rules"].get(rule.name)
            if told is None:
                continue
            row = [rule.label]
            for which, tests in (("shared", "at_one_rate"), ("own", "at_own_rate")):
                test = own[tests].get(rule.name, {})
                row += [f"{told['best']:g}" if told["best"] else "–"] if which == "own" else []
                row += [telling.spread(told.get(which, {}).get("dev"))]
                row += [telling.gain(test.get("gain")), chance(test.get("p_holm"))]
            seconds = told.get("own", {}).get("seconds", {}).get("mean")
            rows.append([*row, str(len(told["as_good"])), number(seconds, ".0f")])
        near = telling.amount(task.near)
        note = (
            f"*Gain*: what it is better than {LABELS[REFERENCE]} by, at the same rate and both "
            f"at their own. *Rates as good*: how many of {len(own['rates'])} are within {near} of "
            "its best, with the seed that chose. *Seconds*: of a training, start included."
        )
        return f"{table(columns, rows)}\n\n{note}"


def _tested(telling: Telling) -> Iterator[list[str]]:
    """A row an optimizer."""
    for rule in RULES:
        own = telling.own["rules"].get(rule.name, {}).get("own", {})
        if "test" not in own:
            continue
        row = [rule.label, f"{own['rate']:g}", telling.spread(own["test"])]
        row += [telling.span(own["test"]), telling.spread(own["clean"])]
        if "bits_per_byte" in own:
            row.append(f"{own['bits_per_byte']['mean']:.3f}")
        test = telling.own["on_test"].get(rule.name)
        if test is None:
            yield [*row, "", "", "", "", "", ""]
            continue
        row += [telling.gain(test["gain"]), telling.span(test, signed=True)]
        row += [chance(test[key]) for key in ("p_texts", "p_seeds", "p_holm")]
        yield [*row, telling.verdict(rule.name)]


def _every_rate(telling: Telling) -> str:
    """A row a rate: all optimizers, and who would be first and last were it the one for all."""
    own = telling.own
    rules = [rule for rule in RULES if rule.name in own["rules"]]
    columns = ["rate", *(rule.label for rule in rules), "first", "last"]
    rows = []
    for name in [f"{value:g}" for value in own["rates"]]:
        row = [name]
        for rule in rules:
            told = own["rules"][rule.name]
            shown = telling.figure(told["by_rate"].get(name))
            row.append(f"**{shown}**" if told["best"] and f"{told['best']:g}" == name else shown)
        wins = own["wins"].get(name)
        ends = [LABELS[wins[end]] if wins else "–" for end in ("first", "last")]
        rows.append([*row, *ends])
    return table(columns, rows)
