"""The page of results, in Markdown, from figures alone: its sentences say what the figures say."""

from __future__ import annotations

from collections.abc import Iterator

from reading import Facts, place
from ted.tables import table
from ted.words import SURE, chance, listed, number, opened

from masked.systems import DROPOUTS, FRESH_SEEDS, RATES, SCRATCH, TRIALS, TUNED, WAYS

HEAD = """# Pretraining

What masked language modelling on text without labels is worth on SST-2. This page is generated,
tables and sentences both. `python benchmarks/pretraining.py train` trains (the whole command is
below); this wrote the page:

```sh
python benchmarks/pretraining.py report --runs RUNS
```

All figures: [`pretraining.json`](../../benchmarks/results/pretraining.json)."""
PATH = """## In the same way, by hand

The recipes as they are shipped are smaller than this study's model, and learn for other numbers of
epochs; `heed recipes NAME` prints them. Whoever has RoBERTa-base on disk takes the last of these
commands; it is the second with another recipe and another folder to begin from
([fine-tuning](../fine-tuning.md)).

```sh
heed train sst2/pretrain --train TEXT --dev DIR/dev.tsv --run runs/pretrain
heed train sst2/finetune-small --data DIR --set init.from=runs/pretrain --run runs/tuned
heed train sst2/finetune-small --data DIR --set 'init={}' --run runs/scratch
heed train sst2/finetune --data DIR --set init.from=models/roberta-base --run runs/roberta
```"""
LINEAR = 0.828
"""What a linear SVM on TF-IDF is reported to have on test."""


class Page:
    """Figures on their way to a page."""

    def __init__(self, figures: Facts) -> None:
        self.figures, self.ways = figures, figures["ways"]

    def text(self) -> str:
        """The whole page."""
        if not any(own["trials"] for own in self.ways.values()):
            return f"{HEAD}\n\nNothing is trained yet.\n"
        head = opened(HEAD, [self._finding()])
        parts = [head, "## Scores", *self._found(), "## How", self._how(), *self._machine()]
        parts += ["## Every trial", self._trials(), *self._pretraining(), PATH]
        return "\n\n".join(parts) + "\n"

    def _found(self) -> Iterator[str]:
        done = {way: own for way, own in self.ways.items() if "test" in own}
        if not done:
            return
        columns = [
            "accuracy, %",
            "seeds",
            "rate",
            "dropout",
            "dev",
            "test",
            "95%",
            "clean",
            "seconds",
        ]
        rows = [
            [
                own["label"],
                str(len(own["seeds"])),
                f"{own['best']['rate']:g}",
                f"{own['best']['dropout']:g}",
                *(_spread(own[name]) for name in ("dev", "test")),
                _span(own["test"]),
                _spread(own["clean"]),
                f"{own['seconds']['mean']:.0f}",
            ]
            for own in done.values()
        ]
        known = next(iter(done.values()))["test_set"]
        yield (
            f"{table(columns, rows)}\n\n± is the standard deviation over seeds; 95%, over draws of "
            f"the {known['texts']:,} sentences of test. *Clean* leaves out the "
            f"{known['in_train'] or 0} of them that are in the training set as well. *Seconds*: of "
            "one training with labels, start included."
        )
        yield from self._tests()

    def _finding(self) -> str:
        """What the two tests say together."""
        test = self.figures["compared"]
        if not test:
            return "Too few seeds are scored yet to compare the two."
        mine, theirs = (self.ways[way]["test"] for way in (TUNED, SCRATCH))
        seeds = listed([str(len(self.ways[way]["seeds"])) for way in (TUNED, SCRATCH)])
        said = (
            f"{_spread(mine)}% of test right against {_spread(theirs)}% from scratch ({seeds} "
            f"seeds), {_points(test['gain'])} points, 95% {_apart(test)}"
        )
        if test["p"] >= SURE:
            verdict = f"**No difference is shown**: {said}, p = {chance(test['p'])}."
        else:
            word = "better" if test["gain"] > 0 else "worse"
            p = chance(test["p"])
            sure = p if p.startswith("<") else f"= {p}"
            verdict = f"**Pretraining makes the same model {word}**: {said}, p {sure}."
        sides = [self._beside_linear(way) for way in WAYS]
        return (
            f"{verdict} A linear SVM on TF-IDF is reported at {100 * LINEAR:.1f}: {listed(sides)}."
        )

    def _beside_linear(self, way: str) -> str:
        apart = self.ways[way]["test"]["mean"] - LINEAR
        where = "above" if apart > 0 else "below"
        return f"{WAYS[way]}, the mean is {abs(100 * apart):.1f} {where} it"

    def _tests(self) -> Iterator[str]:
        """Every p there is."""
        test = self.figures["compared"]
        if not test:
            return
        columns = ["set", "gain", "95%", "p, sentences", "p, seeds"]
        chances = [chance(test[name]) for name in ("p_texts", "p_seeds")]
        rows = [["test", _points(test["gain"]), _apart(test), *chances]]
        for name in ("clean", "dev"):
            own = test[name]
            rows.append([name, _points(own["gain"]), "", "", chance(own["p_seeds"])])
        yield table(columns, rows)

    def _how(self) -> str:
        same = self.figures["same"]
        alike = {
            (True, True): "the same tokenizer and as many weights, which was checked",
            (False, True): "as many weights, **but not the same tokenizer**",
            (True, False): "the same tokenizer, **but not as many weights**",
            (False, False): "**neither the same tokenizer nor as many weights**",
        }[same["tokenizer"], same["parameters"]]
        tuning = self.figures["tuning"]
        edges = [own["label"] for own in self.ways.values() if own["at_edge"]]
        beyond = (
            f" At an edge of the rates, and maybe better beyond: {listed(edges)}." if edges else ""
        )
        kept = ", ".join(f"`{change}`" for change in tuning["changes"])
        fresh = listed([str(seed) for seed in FRESH_SEEDS])
        return f"""{self._text()}
- **The same for both**: `{tuning["recipe"]}` with {kept}. All {same["runs"]} classifiers have
  {alike}. The pieces of the tokenizer were learnt from the text
  and the training set together, either way.
- **Trials.** Both try {len(RATES)} rates and {len(DROPOUTS)} dropouts, {len(TRIALS)} trials each,
  with seed 0. The best accuracy on dev decides, of equals the lower rate.{beyond}
- **Seeds.** What is told of the chosen ones comes from fresh seeds ({fresh}). Test was looked at
  with these models alone. There is one pretraining: what another seed of it would change is in no
  interval here.
- **Tests.** A bootstrap of the sentences, each drawn with the answers of all models of both (would
  they differ on other sentences?), and Welch's t-test over seeds (with other seeds?). To call two
  different is to say yes twice, so the larger p counts. For *clean* and dev there is Welch's
  alone."""

    def _text(self) -> str:
        known = self.figures["text"]
        if not known:
            return "- **Text.** Nothing is noted of it."
        longest = known["longest_in_the_text"]
        there = f" (of {longest} words at most)" if longest else ""
        return f"""- **Text.** {known["name"]}: {known["lines"]:,} lines, {known["words"]:,} words.
  Of the {known["test_sentences"]:,} sentences of test {known["in_the_text"]} stand in it as a
  line{there}, and {known["share_a_run"]} share {known["run"]} words in a row with it."""

    def _machine(self) -> Iterator[str]:
        machine = self.figures["machine"]
        if not machine:
            return
        yield (
            f"Trained on: {place(machine)}; {machine['jobs']} classifiers side by side; torch "
            f"{machine['torch']}, Python {machine['python']}. By `{machine['command']}`."
        )

    def _trials(self) -> str:
        """A row a trial, the chosen ones in bold."""
        rows = []
        for trial in TRIALS:
            row = [f"{trial.rate:g}", f"{trial.dropout:g}"]
            both = {"rate": trial.rate, "dropout": trial.dropout}
            for own in self.ways.values():
                tried = [one["dev"] for one in own["trials"] if both.items() <= one.items()]
                shown = _figure(tried[0]) if tried else "–"
                row.append(f"**{shown}**" if own["best"] == both else shown)
            rows.append(row)
        names = [own["label"] for own in self.ways.values()]
        shown = table(["rate", "dropout", *names], rows)
        return f"{shown}\n\nDev accuracy, %, seed 0; bold, the choice."

    def _pretraining(self) -> Iterator[str]:
        """How well hidden tokens were guessed."""
        own = self.figures["pretraining"]
        if not own:
            return
        yield "## The pretraining"
        changes = ", ".join(f"`{change}`" for change in own["changes"])
        yield (
            f"`{own['recipe']}` with {changes}: "
            f"{own['parameters']:,} parameters, {own['seconds']:.0f} seconds with its start, while "
            "trials from scratch went on beside it one by one. Dev is that of SST-2, its labels "
            "unread."
        )
        rows = [
            [
                str(line["epoch"]),
                f"{line['step']:,}",
                *(number(line[key], ".3f") for key in ("train_loss", "dev_loss")),
                f"{100 * line['dev_accuracy']:.1f}",
            ]
            for line in own["curve"]
        ]
        yield table(["epoch", "updates", "train loss", "dev loss", "guessed on dev, %"], rows)


def _figure(value: float | str) -> str:
    """A share in percent, or how a trial ended."""
    return value if isinstance(value, str) else f"{100 * value:.2f}"


def _spread(known: Facts) -> str:
    deviation = known["deviation"]
    return _figure(known["mean"]) + ("" if deviation is None else f" ± {_figure(deviation)}")


def _span(known: Facts) -> str:
    return f"[{_figure(known['low'])}, {_figure(known['high'])}]"


def _points(share: float) -> str:
    """A difference of accuracies, in points."""
    return f"{100 * share:+.2f}"


def _apart(test: Facts) -> str:
    return f"[{_points(test['low'])}, {_points(test['high'])}]"
