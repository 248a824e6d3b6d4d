"""The page of results, in Markdown, from figures alone: its sentences say what the figures say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reading import Facts

from ted import tables
from ted.systems import GROUPS, REPORTED, SAID, SETS, SHORT
from ted.words import by_how_much, differs, listed, opened, says, spread, summary, words

HEAD = """# Translation

English to French, TED talks: 30,000 pairs to learn from. This page is generated, tables and
sentences both. The first command trains the systems; the second makes a
[record](../../benchmarks/results/translation) of each run, figures without a word of the corpus,
and the page from all records; the third makes it from those that there are.

```sh
python benchmarks/translation.py train --data DIR --runs RUNS
python benchmarks/translation.py report --runs RUNS
python benchmarks/translation.py report
```

All figures: [`translation.json`](../../benchmarks/results/translation.json)."""
COMPARED = """## How systems are compared

A system is trained with several seeds. Its score is the mean of its models' corpus BLEU; ± is the
standard deviation over seeds, and brackets hold the middle 95% of that score over 1,000 bootstrap
samples of the sentences. Whether two systems differ is asked three times.

- **Bootstrap**: would they differ on other sentences? Sentences are drawn with replacement, each
  with what all models of both systems wrote for it (Koehn 2004).
- **Randomisation**: could they differ by luck? 10,000 times the systems exchange what they wrote
  for a sentence, seed by seed, for half of the sentences (Riezler and Maxwell 2005). This takes the
  seeds that both have.
- **Seeds**: would they differ with other seeds? Welch's t-test over the seeds' scores. Where a
  system has one seed there is no answer, and what is said is said of *these models*.

Translations of one sentence by several seeds are no independent sentences, so a sentence is drawn
or exchanged with all of them; pooled, they would make everything look surer than it is. To call
systems different is to say yes to every question, so the largest p counts. It is corrected for the
number of comparisons in its table (Holm 1979), and "no difference shown" stands where it is not
below 0.05. That is no proof that there is none."""
EFFECTS = """Set 4 is set 3 with two more layers and half the dropout. What each of the two does is
seen twice, with and without the other. Taken together, as one analyses a design of two by two, the
mean of both differences, by the same tests (Welch's over all four systems' seeds). These two were
asked after the pairs above, and are corrected for each other only:"""
FIGURES_ONLY = """Of some runs only figures are kept, and not what was counted in each sentence.
Scores, differences and the test over seeds are of all runs. How much sentences vary (brackets,
bootstrap, randomisation) is seen in the seeds that there are counts of, or was when the runs were
there, whichever is of more seeds. Where these are fewer than all, the column *seeds* has their
number in brackets. What is told by length is of the seeds with counts alone, where there are any,
and *these models* stands where that is one."""
LONGER = f"""The same, but learnt from pairs of at most {SHORT} words a side: nearly all of these
have at most 40 tokens. Longer pairs are left out, not cut. The test set is the whole one. `learned`
has vectors for all positions; those that no training text reached are as they were drawn. *Kept* is
the share of the BLEU that the same encoding has there when it learns from all lengths, *length* the
tokens written for each token of the reference."""
UNEQUAL = """The LSTM is the course report's, and its rate (a constant 0.01) was not tuned here. The
Transformer has as many parameters and the same text, but a rate that rises and falls, and it learns
for as long as it gains."""
ABOUT = {
    "best": "the best recipe",
    "sets": "the four sets",
    "fail": "what may ail set 4 as reported",
    "lstm": "an LSTM beside a Transformer",
    "positions": "the position encodings",
    "lengths": "sentences longer than those learnt from",
}
"""What each group is about."""
PAIRS = list(zip(REPORTED, SETS, strict=True))


class Page:
    """Figures on their way to a page."""

    def __init__(self, figures: Facts, pictures: Sequence[str]) -> None:
        self.figures, self.pictures = figures, set(pictures)
        self.systems: Facts = figures["systems"]
        self.compared: Facts = figures.get("compared", {})
        self.by_length: Facts = figures.get("by_length", {})
        coded = {system.name for group in ("positions", "lengths") for system in GROUPS[group]}
        self.labels: dict[str, str] = {
            name: f"`{own['label']}`" if name in coded else own["label"]
            for name, own in self.systems.items()
        }

    def text(self) -> str:
        """The whole page."""
        parts = [opened(HEAD, list(self._findings()))]
        if self.systems:
            parts += [*self._about(), COMPARED, *self._figures_only()]
            parts += [*self._best_and_sets(), *self._lengths_of_sets()]
            parts += [*self._fail(), *self._lstm(), *self._positions(), *self._longer()]
            parts += self._signatures()
        return "\n\n".join([*parts, *self._left_out()]) + "\n"

    def _findings(self) -> Iterator[str]:
        """What was found, in at most five sentences."""
        if best := self.systems.get("best"):
            yield (
                "On TED talks, English to French, the best recipe reaches "
                f"{spread(best['bleu'])} BLEU on test ({len(best['seeds'])} seeds)."
            )
        if gains := [one["difference"] for one in self.compared.get("sets", []) if differs(one)]:
            shown = f"{len(gains)} of {len(self.compared['sets'])}"
            yield (
                f"Training the sets of a course report well, instead of as reported, changes BLEU "
                f"by {min(gains):+.2f} to {max(gains):+.2f} (a difference is shown for {shown})."
            )
        effects = [one for one in self.compared.get("effects", []) if differs(one)]
        if costs := [one for one in effects if one["difference"] < 0]:
            causes = listed([f"{one['change']} ({by_how_much(one)})" for one in costs])
            yield f"What makes set 4 as reported worse than set 3 is {causes}."
        if lstm := [one for one in self.compared.get("lstm", []) if differs(one)]:
            yield (
                "A Transformer differs from an LSTM of as many parameters by "
                f"{by_how_much(lstm[0])}."
            )
        if compared := self.compared.get("positions"):
            names = {one["system"] for one in compared} | {one["against"] for one in compared}
            first = max(names, key=lambda name: float(self.systems[name]["bleu"]["mean"]))
            beside = [one for one in compared if one["system"] == first]
            more = f" ({by_how_much(beside[0])} against `rope`)" if beside else ""
            bleu = spread(self.systems[first]["bleu"])
            yield f"The best position encoding is {self.labels[first]} with {bleu} BLEU{more}."

    def _of(self, *groups: str) -> Facts:
        """The systems of some groups that there are."""
        named = [system.name for group in groups for system in GROUPS[group]]
        return {name: self.systems[name] for name in named if name in self.systems}

    def _picture(self, name: str, about: str) -> Iterator[str]:
        if name in self.pictures:
            yield f"![{about}]({name})"

    def _tests(self, question: str) -> Iterator[str]:
        """A question's comparisons, and what they say."""
        if compared := self.compared.get(question):
            yield tables.comparisons(compared, self.labels)
            yield summary(compared, self.labels)

    def _about(self) -> Iterator[str]:
        test = self.figures["test"]
        known = test["in_train"] is not None
        seen = f"{test['in_train']} are" if known else "It is not known how many of them are"
        yield (
            f"The test set has {test['texts']:,} pairs. {seen} in the training text as well; the "
            "column *clean* leaves them out. Weights were chosen on dev; those of the position "
            "encodings are as the last update left them."
        )
        for machine in self.figures["machines"]:
            packages = machine.get("packages", {})
            where = machine.get("gpu") or f"CPU ({machine.get('cpu_capability', 'unknown')})"
            parts = [where, f"torch {packages.get('torch')}", f"Python {machine.get('python')}"]
            parts += ["bfloat16" if machine.get("bf16") else "float32"]
            parts += [f"commit {machine['commit'][:12]}"] if machine.get("commit") else []
            yield f"Trained on {', '.join(parts)}: {self._trained_with(machine.get('gpu'))}."
        before = [name for name, own in self.systems.items() if own["scaled_otherwise"]]
        if before:
            yield (
                "Trained before tokens and positions were scaled as they are now "
                f"([log](../log.md#positions-that-could-not-keep-up)), to be trained again: "
                f"{listed([self.labels[name] for name in before])}."
            )
        apart = {name: own["apart"] for name, own in self.systems.items() if own["apart"]}
        if apart:
            yield (
                f"Seeds of {listed([self.labels[name] for name in apart])} were trained by two "
                "versions of heed, between which words were split a little otherwise: "
                "their vocabularies differ by a few words, their parameters by up to "
                f"{max(apart.values()):,}."
            )
        jobs = max((own["jobs"] for own in self.systems.values()), default=1)
        beside = f" Up to {jobs} runs shared the machine." if jobs > 1 else ""
        yield (
            "Minutes are those of the whole training command, evaluations included. Tokens a "
            f"second count both sides and padding.{beside}"
        )

    def _figures_only(self) -> Iterator[str]:
        fewer = (own["bleu"]["sentences"] < len(own["seeds"]) for own in self.systems.values())
        if any(fewer):
            yield FIGURES_ONLY

    def _trained_with(self, gpu: str | None) -> str:
        there = [self.labels[name] for name, own in self.systems.items() if own["gpu"] == gpu]
        if len(there) == len(self.systems):
            return "all"
        return listed(there) if 2 * len(there) < len(self.systems) else "all others"

    def _best_and_sets(self) -> Iterator[str]:
        if not (shown := self._of("best", "sets")):
            return
        yield "## The four sets, trained well and as reported, and the best recipe"
        yield tables.scores(shown, self.labels)
        yield from self._tests("best")
        if "sets" in self.compared:
            yield "Each set trained well, against itself as reported:"
        yield from self._tests("sets")
        yield from self._beside_the_report()
        yield from self._curves()
        yield tables.costs(shown, self.labels)

    def _beside_the_report(self) -> Iterator[str]:
        of = [(self.systems.get(told.name), self.systems.get(well.name)) for told, well in PAIRS]
        rows = [(f"set {i}", said, *pair) for (i, said), pair in zip(SAID.items(), of, strict=True)]
        if shown := [row for row in rows if any(row[2:])]:
            yield (
                'The course report has a "BLEU" between 0 and 1 and does not say which. Beside it, '
                "the mean BLEU of sentences as NLTK computes it, which such reports often give:"
            )
            yield tables.beside_the_report(shown)

    def _curves(self) -> Iterator[str]:
        for line in self._picture("translation-curves.png", "Loss and dev BLEU, a set each"):
            yield line
            yield (
                "Curves are those of the first seed. Sets as reported learn words, the others "
                "pieces of words: their losses do not compare, their BLEU does."
            )

    def _lengths_of_sets(self) -> Iterator[str]:
        if not self.by_length.keys() & {"sets", "reported"}:
            return
        yield "## By sentence length"
        for name, how in (("sets", "Trained well"), ("reported", "As reported")):
            if own := self.by_length.get(name):
                yield f"{how}, BLEU by words in the source:"
                yield tables.by_length(own["groups"], self._by_seeds(own["groups"][0]["systems"]))
                yield from self._picture(f"translation-lengths-{name}.png", f"{how}, by length")
                yield from self._third(own["tests"])

    def _by_seeds(self, scored: Facts) -> dict[str, str]:
        """Labels that say of how many seeds a score is, where those are not all."""
        return {
            name: f"{self.labels[name]} ({counted['sentences']} of {len(all_seeds)} seeds)"
            if counted["sentences"] < len(all_seeds)
            else self.labels[name]
            for name, counted in scored.items()
            for all_seeds in [self.systems[name]["seeds"]]
        }

    def _third(self, tests: Sequence[Facts]) -> Iterator[str]:
        """What becomes of the report's claim that set 3 wins on long sentences."""
        lines = []
        for test in (one for one in tests if one["compared"]):
            found = test["compared"]
            wins = all(differs(one) and one["difference"] > 0 for one in found)
            told = [
                f"against {self.labels[one['against']]} {by_how_much(one)}: {says(one)}"
                for one in found
            ]
            lines.append(
                f"- {test['texts']:,} sentences of {words(test)} words: "
                f"{'shown' if wins else 'not shown'}; {'; '.join(told)}."
            )
        if lines:
            claim = "The report says that set 3 wins on long sentences. Here:"
            yield "\n".join([claim, "", *lines])

    def _fail(self) -> Iterator[str]:
        if not (shown := self._of("fail")):
            return
        yield "## What made set 4 fail"
        smaller = self.compared.get("smaller")
        yield (
            "The report's set 4 is its worst: 63% accuracy, where the others had 90%."
            + (f" {summary(smaller, self.labels)}" if smaller else "")
        )
        curves, changed = self.figures["curves"], (one.name for one in REPORTED[2:])
        tried = [name for name in (*changed, *shown) if curves.get(name)]
        yield tables.mended({name: self.systems[name] for name in tried}, curves, self.labels)
        yield from self._picture("translation-fail.png", "Dev loss and BLEU by epoch")
        yield "One thing changed at a time, and two at once:"
        yield from self._tests("fail")
        if "depth" in self.compared:
            yield "Six layers beside four, with the same dropout:"
            yield from self._tests("depth")
        if found := self.compared.get("effects"):
            yield EFFECTS
            yield tables.effects(found)
            yield from self._shares()

    def _shares(self) -> Iterator[str]:
        """How much of what set 4 is behind set 3 goes to each of the two things it changes."""
        names = ("set3-reported", "fail-set3", "fail-dropout", "set4-reported")
        if not all(name in self.systems for name in names):
            return
        neither, less_dropout, layers, both = (self.systems[n]["bleu"]["mean"] for n in names)
        dropout = (neither - less_dropout, layers - both)
        depth = (neither - layers, less_dropout - both)
        effects = self.compared["effects"]
        shown = [e["change"] for e in effects if differs(e) and e["difference"] < 0]
        cost = f"{listed(shown).capitalize()} {'cost' if len(shown) > 1 else 'costs'} it."
        yield (
            f"Of the {neither - both:.2f} BLEU that set 4 is behind set 3, dropout makes "
            f"{sum(dropout) / 2:.2f} ({dropout[0]:.2f} with four layers, {dropout[1]:.2f} with "
            f"six) and the layers {sum(depth) / 2:.2f} ({depth[0]:.2f} with dropout 0.2, "
            f"{depth[1]:.2f} with 0.1). {cost if shown else 'For neither is that shown.'}"
        )

    def _lstm(self) -> Iterator[str]:
        if shown := self._of("lstm"):
            yield "## An LSTM beside a Transformer of as many parameters"
            yield UNEQUAL
            yield tables.scores(shown, self.labels)
            yield from self._tests("lstm")
            yield tables.costs(shown, self.labels)

    def _positions(self) -> Iterator[str]:
        if shown := self._of("positions"):
            yield "## Position encodings"
            yield (
                "`ted-en-fr/minute`, which has the size of set 2, with another `model.position` "
                "each."
            )
            yield tables.scores(shown, self.labels)
            yield from self._picture("translation-positions.png", "BLEU by position encoding")
            yield from self._tests("positions")
            yield tables.costs(shown, self.labels)

    def _longer(self) -> Iterator[str]:
        if not (own := self.by_length.get("lengths")):
            return
        yield "## Sentences longer than those learnt from"
        yield LONGER
        shown = self._of("lengths")
        yield tables.seen_and_longer(own["parts"], list(shown), self.labels)
        yield self._goes_on(own["parts"], shown)
        yield from self._picture("translation-longer.png", "BLEU by length, after short pairs")
        for test in (one for one in own["tests"] if one["compared"]):
            yield f"On the {test['texts']:,} sentences of {words(test)} words:"
            yield tables.comparisons(test["compared"], self.labels)
            yield summary(test["compared"], self.labels)
        yield tables.costs(shown, self.labels)

    def _goes_on(self, parts: Sequence[Facts], shown: Facts) -> str:
        """Which encodings keep as much on the longer sentences as on those like the learnt ones."""
        shares = {name: [tables.kept(part, name) or 0.0 for part in parts] for name in shown}
        going = [self.labels[name] for name, (*short, long) in shares.items() if long >= max(short)]
        told = f"{listed(going)} {'go' if len(going) > 1 else 'goes'}" if going else "None goes"
        written = {name: parts[-1]["systems"][name]["length_ratio"] for name in shown}
        most = sorted(written, key=lambda name: abs(1 - written[name]))[:2]
        nearest = [f"{self.labels[name]} ({written[name]:.2f})" for name in most]
        return (
            f"{told} on past the learnt length as before. Nearest to the right length there: "
            f"{listed(nearest)}."
        )

    def _signatures(self) -> list[str]:
        names = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "plain": "mean sentence BLEU"}
        found = self.figures["test"]["signatures"]
        lines = [f"- {names[key]}: `{signature}`" for key, signature in found.items()]
        return ["## Signatures", "\n".join(lines)]

    def _left_out(self) -> Iterator[str]:
        missing = list[str]()
        for group, about in ABOUT.items():
            untold = [str(system) for system in GROUPS[group] if system.name not in self.systems]
            missing += untold if self._of(group) else [about]
        lines = [f"- Not trained yet: {listed(missing)}."] if missing else []
        lines += [f"- Left out: {line}" for line in self.figures["left_out"]]
        if lines:
            yield "## Left out"
            yield "\n".join(lines)
