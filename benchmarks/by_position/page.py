"""The page: what the reports claim, and what was measured. Every number comes from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from by_position.measure import SHORTEST
from by_position.results import EVEN, Results
from by_position.systems import LENGTH, PADDING, POSITIONS, SENTENCES

COLUMNS = {
    "distance": "mean distance, tokens",
    "first_three": "on the first three",
    "same": "on itself",
    "previous": "on the one before",
    "next": "on the one after",
    "padding": "on padding",
}
NAME = "attention-by-position"


def write_page(results: Results) -> str:
    """The whole page as Markdown."""
    parts = [
        "# Attention by position",
        _summary(results),
        _methods(results),
        "## The classifier (encoder)",
        f"![Maps of the classifier, a row for each position]({NAME}-encoder.png)",
        "*Seed 0. A row is a query (the token that asks), a column a key (the token that answers); "
        "the color is the square root of the weight. Words "
        f"with an asterisk are unknown to the model. “{SENTENCES['short']}” at the left; "
        f"“{SENTENCES['long']}” as the mean of all heads, and as the head that looks nearest.*",
        "**What to see.** Columns, not diagonals: all rows look at the same few words, whatever "
        "the position. Under `none`, equal words have equal rows: compare the two rows of “the”, "
        "or the two commas.",
        _table(results, "encoder", ("distance", "first_three", "same", "previous", "next")),
        "## The language model (decoder)",
        f"![Maps of the language model, a row for each position]({NAME}-decoder.png)",
        "*As above; grey cells are masked: a token does not see later ones.*",
        "**What to see.** Here there are diagonals, in every row: a token looks at itself. `t5` "
        "and `rope` have heads that do little else. The dark cells at the top left are no "
        "preference: the first rows see only a few tokens.",
        _table(results, "decoder", ("distance", "first_three", "same", "previous")),
        "## What the reports claim",
        f"**“ALiBi looks at near tokens.”** {_claim_near(results)}",
        f"**“Attention is on the first few tokens.”** {_claim_first(results)}",
        f"![A sentence in a 32 × 32 picture, padding masked and read]({NAME}-padding.png)",
        _padding(results),
        _table(results, "padded", ("distance", "first_three", "padding")),
        f"**“Large values are on the diagonal.”** {_claim_diagonal(results)}",
        f"**“Without positions, equal words are the same.”** {_claim_equal(results)}",
        _scores(results),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(results: Results) -> str:
    encoder = results["encoder"]["comparisons"]["distance even"]["alibi"]
    decoder = results["decoder"]["comparisons"]["distance even"]
    nearest = min(decoder, key=lambda name: decoder[name]["mean"])
    others = [one for name, one in decoder.items() if name != nearest]
    least = "has the shortest mean distance, "
    if all(decoder[nearest]["high"] < one["low"] for one in others):
        least = "looks nearest (its interval lies below all others), "
    low, high = (_number(-encoder[side], "distance") for side in ("high", "low"))
    return (
        f"ALiBi's encoder looks {-encoder['difference']:.2f} [{low}, {high}] tokens nearer than "
        f"uniform attention; in a language model `{nearest}` {least}"
        f"{decoder[nearest]['mean']:.1f} tokens away. "
        "That attention is “on the first few tokens” is what padding does to a picture."
    )


def _methods(results: Results) -> str:
    seeds, texts = results["encoder"]["seeds"], results["encoder"]["texts"]
    return (
        f"Seven positions, {seeds} seeds each, in three models of a course report's size (4 "
        "layers, 2 heads, width 64), trained on its speeches by `heed train`. heed reproduces the "
        "settings that such reports on Transformers printed. Weights are exact, "
        f"from the plain path. They were measured on {texts} test texts of {SHORTEST} to {LENGTH} "
        "tokens that are not in train, and averaged over layers, heads and queries. "
        "“Uniform” is a head that attends to all visible tokens alike: a share means something "
        "only beside it. Brackets are the difference "
        "from uniform attention: 95% intervals over seeds and texts, simultaneous for each column. "
        f"All numbers: [`{NAME}.json`](../../benchmarks/results/{NAME}.json). To make them again:\n"
        """
```sh
python benchmarks/attention_by_position.py train --data DIR --runs RUNS --out OUT --jobs 16
python benchmarks/attention_by_position.py report --measured OUT
```"""
    )


def _table(results: Results, model: str, statistics: Sequence[str]) -> str:
    even = results[model]["even"]
    means = [_number(float(np.mean(even[name])), name) for name in statistics]
    lines = [
        f"| position | {' | '.join(COLUMNS[name] for name in statistics)} |",
        f"|---|{'---|' * len(statistics)}",
        f"| uniform | {' | '.join(means)} |",
    ]
    comparisons = results[model]["comparisons"]
    for position in POSITIONS:
        cells = [_cell(comparisons[f"{name} {EVEN}"][position], name) for name in statistics]
        lines.append(f"| `{position}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(one: Mapping[str, float], statistic: str) -> str:
    low, high = (_number(one[side], statistic, signed=True) for side in ("low", "high"))
    return f"{_number(one['mean'], statistic)} [{low}, {high}]"


def _number(value: float, statistic: str, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    digits = 2 if statistic == "distance" else 3
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def _split(comparison: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[str], list[str]]:
    """Positions below the baseline, above it, and those of which neither is shown."""
    below = [name for name, one in comparison.items() if one["high"] < 0]
    above = [name for name, one in comparison.items() if one["low"] > 0]
    return below, above, [name for name in comparison if name not in (*below, *above)]


def _list(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return (
        " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
        if quoted
        else "no position"
    )


def _count(names: Sequence[str]) -> str:
    return "every position" if len(names) == len(POSITIONS) else _list(names)


def _claim_near(results: Results) -> str:
    encoder = results["encoder"]["comparisons"]
    one = encoder["distance even"]["alibi"]
    _, farther, unclear = _split(encoder["distance alibi"])
    nearer_lm, farther_lm, unclear_lm = _split(results["decoder"]["comparisons"]["distance alibi"])
    heads = np.array(results["encoder"]["positions"]["alibi"]["by_head"]["distance"])
    return (
        f"In the classifier it looks {_number(one['mean'], 'distance')} tokens away on average, "
        f"{_number(-one['difference'], 'distance')} nearer than uniform attention "
        f"({_number(float(np.mean(results['encoder']['even']['distance'])), 'distance')}). "
        f"It looks nearer than {_list(farther)}"
        + (f"; between it and {_list(unclear)} no difference is shown" if unclear else "")
        + f". The steeper of the two slopes does it: head 1 looks {heads[:, 0].mean():.1f} tokens "
        f"away, head 2 {heads[:, 1].mean():.1f}. In the language model "
        f"{_list(nearer_lm)} look nearer than `alibi`, {_list(farther_lm)} farther, and for "
        f"{_list(unclear_lm)} no difference is shown. ALiBi's slopes are fixed before training, "
        "and with two heads one of them is almost flat."
    )


def _claim_first(results: Results) -> str:
    below, above, unclear = _split(results["encoder"]["comparisons"]["first_three even"])
    below_lm, above_lm, unclear_lm = _split(results["decoder"]["comparisons"]["first_three even"])
    even, even_lm = (
        float(np.mean(results[model]["even"]["first_three"])) for model in ("encoder", "decoder")
    )
    return (
        f"In the classifier the first three tokens get {even:.3f} of uniform attention; more than "
        f"that is shown for {_list(above)}, less for {_list(below)}, neither for {_list(unclear)}. "
        f"In the language model uniform attention gives them {even_lm:.3f}, because early rows see "
        f"little else; more is shown for {_list(above_lm)}, less for {_list(below_lm)}"
        + (f", and for {_list(unclear_lm)} no difference is shown" if unclear_lm else "")
        + ". A picture of a padded sentence shows it all the same:"
    )


def _padding(results: Results) -> str:
    real, share = [], []
    for own in results["padded"]["positions"].values():
        one = own["maps"]["short"]
        padding_n = np.array([token == PADDING for token in one["tokens"]])
        weights_nn = np.array(one["mean"])
        text = int(np.argmax(padding_n))
        real.append(text)
        share.append(float(weights_nn[:text, :text].sum() / text))
    tokens = real[0] + 1
    comparisons = results["padded"]["comparisons"]
    avoid, first = (
        _split(comparisons["padding even"])[0],
        _split(comparisons["first_three even"])[1],
    )
    return (
        f"“{SENTENCES['short']}” has {tokens} tokens, begin and end included. In a picture of "
        f"{LENGTH} × {LENGTH} with padding masked, all weight lies in {tokens} of {LENGTH} "
        "columns: the first few, for any model. Where nothing masks padding and it is read as "
        f"words, models learn to avoid it. Rows of the sentence put {min(share):.2f} to "
        f"{max(share):.2f} of their weight on its {real[0]} columns, where uniform attention would "
        f"put {real[0] / LENGTH:.2f} (seed 0). Over the test texts and all seeds, padding gets "
        f"less than uniform attention gives it under {_count(avoid)}, and what it does not get the "
        f"text does, its first three tokens too under {_count(first)}:"
    )


def _claim_diagonal(results: Results) -> str:
    below, above, unclear = _split(results["encoder"]["comparisons"]["same even"])
    lm = results["decoder"]["comparisons"]["same even"]
    below_lm, above_lm, unclear_lm = _split(lm)
    means = [lm[name]["mean"] for name in POSITIONS]
    even = float(np.mean(results["decoder"]["even"]["same"]))
    every = len(above_lm) == len(POSITIONS)
    encoder = (
        "In the classifier no position is shown to differ from uniform attention in its weight on "
        "the same token."
        if len(unclear) == len(POSITIONS)
        else "In the classifier more weight on the same token than uniform attention gives is "
        f"shown for {_list(above)}, less for {_list(below)}, neither for {_list(unclear)}."
    )
    return (
        f"{encoder} In the language model yes, under {_count(above_lm)}: "
        f"{min(means):.2f} to {max(means):.2f} of the weight, where uniform attention gives "
        f"{even:.2f}"
        + (f"; it is not shown for {_list([*below_lm, *unclear_lm])}" if not every else "")
        + "."
    )


def _claim_equal(results: Results) -> str:
    without = max(results["encoder"]["positions"]["none"]["equal_tokens_differ_by"])
    least = {
        name: min(own["equal_tokens_differ_by"])
        for name, own in results["encoder"]["positions"].items()
        if name != "none"
    }
    lm = min(results["decoder"]["positions"]["none"]["equal_tokens_differ_by"])
    lowest = min(least, key=lambda name: least[name])
    shown = "exactly the same" if without == 0 else f"the same to {without:.0e}"
    return (
        f"In the encoder their rows are {shown} under `none`, in every layer, head and seed; under "
        f"every other position some weight differs by {least[lowest]:.2f} (`{lowest}`) or more. In "
        f"the language model they differ under `none` too, by {lm:.2f} or more: the causal mask "
        "shows each of them another past, and that is a position."
    )


def _scores(results: Results) -> str:
    lines = [
        "## How well the models do",
        "Of the same texts, means over seeds: the models whose attention is described above.",
        "| position | classifier, accuracy | padding read, accuracy | language model, loss |",
    ]
    rows = [
        f"| `{name}` | "
        + " | ".join(
            f"{np.mean(results[model]['positions'][name]['score']):.3f}"
            for model in ("encoder", "padded", "decoder")
        )
        + " |"
        for name in POSITIONS
    ]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join([lines[2], "|---|---|---|---|", *rows])
