"""Which half of a translator's heads can go: the half chosen on dev, or a random half?

    heed train demo-translate --run runs/demo
    python benchmarks/head_removal.py runs/demo

Heads are ranked on dev by the loss that silencing each alone adds, and by greedy removal. Then the
cheaper half is silenced, and the test set is translated; likewise 20 random halves. The difference
in BLEU varies over random halves and over test sentences.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, table

from heed.probe.ablate import METRICS, Scorer, ablate_heads
from heed.probe.examples import open_probe_set
from heed.probe.patch import Head, list_heads
from heed.stats.families import judge_family
from heed.stats.variance import System, estimate_variances

RANDOM_HALVES = 20


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--how", default="zero", help="zero, mean or uniform")
    parser.add_argument("--tiny", action="store_true", help="a trial on 20 sentences")
    arguments = parser.parse_args()
    limit = 20 if arguments.tiny else None
    dev = open_probe_set(arguments.run, limit=limit, device="cpu")
    ablation = ablate_heads(dev, how=arguments.how, notify=print)
    test = open_probe_set(arguments.run, split="test", limit=limit, device="cpu")
    scorer, heads = Scorer(test, arguments.how), list_heads(test.model)
    half = len(heads) // 2
    random = np.random.Generator(np.random.PCG64(0))
    halves: dict[str, list[list[Head]]] = {
        "whole model": [[]],
        "cheaper half alone": [[cost.head for cost in ablation.costs[-half:]]],
        "first half removed greedily": [[cost.head for cost in ablation.removals[:half]]],
        f"{RANDOM_HALVES} random halves": [
            [heads[i] for i in random.permutation(len(heads))[:half]] for _ in range(RANDOM_HALVES)
        ],
    }
    systems = []
    for name, sets in halves.items():
        print(f"{name}: translating {len(scorer.examples):,} sentences {len(sets)} times…")
        systems.append(System(name, np.stack([scorer.counts("bleu", chosen) for chosen in sets])))
    report(arguments.how, systems, halves, tiny=arguments.tiny)


def report(
    how: str, systems: list[System], halves: dict[str, list[list[Head]]], *, tiny: bool
) -> None:
    """Print BLEU and the differences to the random halves, and keep them."""
    variances = estimate_variances(systems, METRICS["bleu"].function)
    base = len(systems) - 1
    judged = judge_family(variances, [variances.contrast(i, base) for i in (1, 2)])
    columns = ["silenced", "BLEU", "more than random halves", "95% interval", "p"]
    rows: list[list[str]] = []
    results: dict[str, Any] = {}
    differences = dict(
        zip(("cheaper half alone", "first half removed greedily"), judged, strict=True)
    )
    for system, values in zip(systems, variances.values_ks, strict=True):
        row = [system.name, f"{values.mean():.2f}", "", "", ""]
        result: dict[str, Any] = {
            "bleu": values.tolist(),
            "silenced": [[head.label for head in chosen] for chosen in halves[system.name]],
        }
        if (one := differences.get(system.name)) is not None:
            width = one.critical * one.standard_error
            low, high = one.difference - width, one.difference + width
            row[2:] = [
                f"{one.difference:+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{one.corrected_p:.2g}",
            ]
            result |= {"difference": one.difference, "low": low, "high": high, "p": one.corrected_p}
        rows.append(row)
        results[system.name] = result
    spread = variances.values_ks[base]
    sentences = systems[0].counts_snc.shape[1]
    title = f"Test BLEU with half of the heads silenced ({how}); {sentences:,} sentences"
    text = table(title, columns, rows)
    text += f"\n\nRandom halves: BLEU {spread.min():.2f} to {spread.max():.2f}."
    if tiny:
        print(text)
    else:
        keep(f"head-removal-{how}", text, results, device="cpu")


if __name__ == "__main__":
    main()
