"""The page of results, in Markdown, from figures alone: its sentences say what the figures say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from reading import Facts
from ted.systems import System
from ted.tables import table
from ted.words import SURE, chance, listed, opened

from nanolm.systems import (
    GROUPS,
    HEADS,
    LONG,
    LONGER,
    MERGES,
    PLAIN,
    POSITIONS,
    REWEIGHT,
    SENTENCES,
)

HEAD = """# A small language model: positions and head merges

`lm/nano` on Shakespeare's plays (`tinyshakespeare.txt`): 3 layers, 3 heads, width 48, one epoch.
This page is generated, tables and sentences both. `python benchmarks/nano.py train --data DIR
--runs RUNS` trains and judges the models; this wrote the page:

```sh
python benchmarks/nano.py report --runs RUNS
```

All figures: [`nano.json`](../../benchmarks/results/nano.json)."""
COMPARED = """## How to read the figures

- **Perplexity** is exp of the mean loss by token, end marks included. The **mean of the texts'
  perplexities**, which the course report gives for train and dev, stands beside it where a set has
  more than one text. They are different figures, and neither can be had from the other.
- A seed begins from its own weights and reads in its own order; the dev texts are the same for all.
  Losses are averaged over seeds; brackets are Student's 95% over seeds, of perplexities by way of
  the loss. They are about other seeds, not about other texts.
- Systems are compared seed by seed, on the same dev texts. **×** is the ratio of perplexities; p is
  Student's paired test, corrected for the number of comparisons in its table (Holm 1979). "No
  difference shown" stands where it is not below 0.05. That is no proof that there is none.
- **Batched** is dev as training reads it, 32 texts side by side. **Alone** is one text at a time.
  **Blind** is one token at a time after nothing but the tokens before it, as in writing, on some
  short texts of dev; *whole* are the same texts read alone, but at once."""
MERGED = """`shuffle` draws another order of the heads at every call, `shift` rolls them by one,
`reweight` gives each head its share of the norm (of one token here). Each acts always, or in
training only: then the heads stand side by side when text is judged."""
OVER = """The share of a head by the norm over one token, over the whole sequence (a token then sees
its future), or over the whole batch (and its neighbours). The last two are refused unless the
recipe says `leaky = true`."""
LEARNT = ", ".join(f"`{change}`" for change in LONGER)
LONG_TEXT = f"""A model leans on its heads only after a while. So the same with more learning:
{LEARNT}."""
WHY = """What becomes of a model whose merge is taken away after training? The same weights, dev
batched: *with* the merge, *without* it, and *even*, without it but every head divided by the number
of heads, which is what `reweight` does where all shares are the same."""
PICTURED = "What other readings than those of training do to perplexity"


class Page:
    """Figures on their way to a page."""

    def __init__(self, figures: Facts, pictures: Sequence[str]) -> None:
        self.figures, self.pictures = figures, pictures
        self.systems: Facts = figures["systems"]

    def text(self) -> str:
        """The whole page."""
        parts = [opened(HEAD, list(self._findings())), *self._about()]
        if self.systems:
            parts += [COMPARED, *self._positions(), *self._merges(), *self._reweight()]
            parts += [*self._longer(), *self._worst()]
        return "\n\n".join([*parts, *self._left_out()]) + "\n"

    def _findings(self) -> Iterator[str]:
        """What was found, in at most five sentences."""
        if positions := self.figures["compared"].get("positions"):
            shown = [one["on"] for one in positions if says(one) in ("better", "worse")]
            told = f"a difference on {listed(shown)}" if shown else "no difference"
            yield f"Learned and sinusoidal positions of a small language model show {told}."
        if merges := self.figures["compared"].get("merges"):
            differing = [one for one in merges if says(one) in ("better", "worse")]
            named = [f"{self._label(one['system'])} ({says(one)})" for one in differing]
            told = f"only {listed(named)} differs" if named else "none differs"
            yield f"Of {len(merges)} head merges {told} from `concat` in dev perplexity."
        longer = {name: self.systems[name] for name in self._there(LONG)}
        leaks = {name: own["blind"]["hidden"] for name, own in longer.items() if own.get("blind")}
        if leaks:
            far = max(leaks, key=lambda name: abs(leaks[name]["mean"]))
            yield (
                f"After more training, {self._label(far)} depends most on tokens it should not "
                f"see: without them its perplexity is {times(leaks[far])} times as large."
            )

    def _there(self, systems: Sequence[System]) -> list[str]:
        return [system.name for system in systems if system.name in self.systems]

    def _label(self, name: str) -> str:
        return f"`{self.systems[name]['label']}`"

    def _about(self) -> Iterator[str]:
        machine = self.figures["machine"]
        seeds = [len(own["seeds"]) for own in self.systems.values()]
        if not seeds:
            return
        where = machine.get("gpu") or machine.get("cpu", "CPU")
        parts = [where, f"torch {machine.get('torch')}", f"Python {machine.get('python')}"]
        parts += ["bfloat16" if machine.get("bf16") else "float32"]
        parts += [f"{machine['jobs']} runs side by side, {machine.get('threads', 1)} thread each"]
        parts += [f"commit {machine['commit'][:12]}"] if machine.get("commit") else []
        each = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        yield f"{each} seeds a system. Trained on: {', '.join(parts)}. Judged in float32."
        if command := machine.get("command"):
            yield f"```sh\n{command}\n```"

    def _positions(self) -> Iterator[str]:
        if not (names := self._there(POSITIONS)):
            return
        yield "## Learned and sinusoidal positions"
        yield (
            "`rope` is what the recipe has. Texts are read alone; of train, as many as dev has. "
            f"The sentences:\n\n{_sentences()}"
        )
        shown = [(name, self.systems[name]["label"]) for name in names]
        shown += [(PLAIN.name, "rope")] if PLAIN.name in self.systems else []
        columns = ["text", "positions", "texts", "tokens", "loss"]
        columns += ["perplexity: exp of the mean loss", "mean of the texts' perplexities"]
        rows = []
        for group in ("sets", "sentences"):
            for place in self.systems[names[0]][group]:
                for name, label in shown:
                    own = self.systems[name][group][place]
                    many = own["texts"] > 1
                    texts = own["log_mean_text_perplexity"]
                    rows.append(
                        [
                            place,
                            f"`{label}`",
                            f"{own['texts']}",
                            f"{own['tokens']:,.0f}",
                            f"{own['loss']['mean']:.3f}",
                            perplexity(own["loss"]),
                            perplexity(texts) if many else "",
                        ]
                    )
        yield table(columns, rows)
        yield from self._tests("positions")

    def _merges(self) -> Iterator[str]:
        names = self._there([*MERGES, *REWEIGHT[:2]])
        if len(names) < 2:
            return
        yield "## The four head merges"
        yield MERGED
        yield self._readings(names)
        yield from self._twins()
        yield from self._tests("merges")
        yield self._alone_sentences(names)

    def _twins(self) -> Iterator[str]:
        """Whether `always` and in training only are the same training."""
        found = self.figures["same_weights"]
        told = [
            f"{self._label(name)} {one['same']} of {one['seeds']}" for name, one in found.items()
        ]
        if told:
            yield (
                "Runs in training only that ended, bit for bit, with the weights of the same merge "
                f"acting always, so that only the reading differs: {listed(told)}."
            )

    def _readings(self, names: Sequence[str]) -> str:
        columns = ["merge", "batched", "alone", "batched / alone"]
        columns += ["mean of the texts' perplexities, alone"]
        rows = []
        for name in names:
            own = self.systems[name]
            dev = own["sets"]["dev"]
            rows.append(
                [
                    self._label(name),
                    perplexity(own["batched"]),
                    perplexity(dev["loss"]),
                    times(own["apart"], 5),
                    perplexity(dev["log_mean_text_perplexity"]),
                ]
            )
        return table(columns, rows)

    def _alone_sentences(self, names: Sequence[str]) -> str:
        rows = [
            [self._label(name)]
            + [perplexity(self.systems[name]["sentences"][key]["loss"]) for key in SENTENCES]
            for name in names
        ]
        return table(["perplexity of a sentence", *SENTENCES], rows)

    def _reweight(self) -> Iterator[str]:
        if names := self._there(REWEIGHT):
            yield "## `reweight` over a token, a sequence and a batch"
            yield OVER
            yield from self._leaks([*self._there([PLAIN]), *names])
            if more := self._there(REWEIGHT[2:]):
                yield self._alone_sentences(more)
            yield from self._why(self._there(REWEIGHT[::2]))

    def _longer(self) -> Iterator[str]:
        if names := self._there(LONG):
            yield "## `reweight` after more learning"
            yield LONG_TEXT
            yield from self._leaks(names)
            yield from self._tests("longer")
            yield from self._why(self._there([*LONG[1:], *HEADS]))
            yield from (f"![{PICTURED}]({name})" for name in self.pictures)

    def _leaks(self, names: Sequence[str]) -> Iterator[str]:
        """Batched, alone and blind."""
        columns = ["merge", "batched", "alone", "batched / alone"]
        columns += ["whole", "blind", "blind / whole"]
        rows = []
        for name in names:
            own = self.systems[name]
            row = [perplexity(own["batched"]), perplexity(own["sets"]["dev"]["loss"])]
            row += [times(own["apart"], 5)]
            blind = own.get("blind")
            keys = ("whole", "blind")
            row += [perplexity(blind[key]) for key in keys] if blind else ["", ""]
            rows.append([self._label(name), *row, times(blind["hidden"], 5) if blind else ""])
        yield table(columns, rows)
        apart = max(names, key=lambda name: abs(self.systems[name]["apart"]["mean"]))
        ratio = times(self.systems[apart]["apart"], 5)
        yield f"Batched and alone are farthest apart for {self._label(apart)}: × {ratio}."
        if seeing := [name for name in names if self.systems[name].get("blind")]:
            far = max(seeing, key=lambda name: abs(self.systems[name]["blind"]["hidden"]["mean"]))
            ratio = times(self.systems[far]["blind"]["hidden"], 5)
            yield f"Hiding the future changes most for {self._label(far)}: × {ratio}."

    def _why(self, names: Sequence[str]) -> Iterator[str]:
        """The same weights, their heads merged in other ways."""
        if not names:
            return
        yield WHY
        columns = ["trained with", "heads", "with", "without", "even"]
        columns += ["without / with", "even / with"]
        rows, lines = [], []
        for name in names:
            own = self.systems[name]
            lost, left = (own["lost"][how] for how in ("without", "even"))
            rows.append(
                [self._label(name), str(own["heads"])]
                + [perplexity(own["read"][how]) for how in ("with", "without", "even")]
                + [times(lost), times(left)]
            )
            if (lost["mean"] if lost["low"] is None else lost["low"]) > 0:
                share = f"{1 - left['mean'] / lost['mean']:.0%}"
                lines.append(f"{self._label(name)} {share} of × {math.exp(lost['mean']):.3f}")
        yield table(columns, rows)
        if lines:
            yield (
                "How much of what is lost without the merge (in loss) comes back when heads are "
                f"divided by their number: {listed(lines)}."
            )

    def _worst(self) -> Iterator[str]:
        """Whether anything is worse than knowing nothing."""
        guess = math.log(self.figures["vocabulary"])
        worse = []
        for name, own in self.systems.items():
            read = {"batched": own["batched"], "alone": own["sets"]["dev"]["loss"], **own["read"]}
            read |= {"blind": own["blind"]["blind"]} if own.get("blind") else {}
            ways = [how for how, one in read.items() if max(one["each"]) > guess]
            worse += [f"`{name}` ({', '.join(ways)})"] if ways else []
        yield (
            f"Who guesses evenly among {self.figures['vocabulary']:,} pieces has a perplexity of "
            f"as many. Worse on dev: {listed(worse) if worse else 'no reading of any seed'}."
        )

    def _tests(self, question: str) -> Iterator[str]:
        """A question's comparisons, and what they say."""
        if not (compared := self.figures["compared"].get(question)):
            return
        columns = ["system", "against", "on", "× perplexity [95%]", "p", "p, corrected", "it says"]
        rows = [
            [
                *(self._label(one[side]) for side in ("system", "against")),
                one["on"],
                times(one),
                *(chance(one.get(key)) for key in ("p", "p_holm")),
                says(one),
            ]
            for one in compared
        ]
        yield table(columns, rows)

    def _left_out(self) -> Iterator[str]:
        every = dict.fromkeys(system.name for group in GROUPS.values() for system in group)
        if missing := [f"`{name}`" for name in every if name not in self.systems]:
            yield f"## Left out\n\nNot trained yet: {listed(missing)}."


def _sentences() -> str:
    return "\n".join(f"- *{name}*: {text}" for name, text in SENTENCES.items())


def perplexity(level: Facts) -> str:
    """`840.4 [810.2, 871.7]`, of a loss."""
    mean, *ends = (_grown(level[key]) for key in ("mean", "low", "high"))
    return mean if "" in ends else f"{mean} [{', '.join(ends)}]"


def _grown(loss: float | None) -> str:
    if loss is None:
        return ""
    value = math.exp(min(loss, 700.0))
    return f"{value:,.1f}" if value < 1e6 else f"{value:.2e}"


def times(level: Facts, digits: int = 3) -> str:
    """`1.020 [1.010, 1.030]`, of a difference of losses."""
    mean, low, high = (level[key] for key in ("mean", "low", "high"))
    shown = f"{math.exp(mean):.{digits}f}"
    if low is None:
        return shown
    return f"{shown} [{math.exp(low):.{digits}f}, {math.exp(min(high, 700.0)):.{digits}f}]"


def says(compared: Facts) -> str:
    """What a comparison says of its first system: a lower perplexity is better."""
    if compared["p"] is None:
        return "one seed: nothing"
    if compared["p_holm"] >= SURE:
        return "no difference shown"
    return "better" if compared["mean"] < 0 else "worse"
