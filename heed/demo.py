"""`heed demo`: the whole story on the generated world, from nothing to a drawn attention map."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heed import draw
from heed.api import Translator
from heed.config import Recipe
from heed.data import world
from heed.errors import RunError
from heed.probe.maps import CrossMap, best_layer, cross_maps
from heed.recipes import find
from heed.runs import Run, write_whole
from heed.score.translation import alignment_error, bleu, exact_match
from heed.train import engine

RECIPE = "demo-translate"
ALIGNED = 200
"""Sentences whose attention is compared with the gold alignment."""
SHOWN = 8
DRAWN = 3


@dataclass(frozen=True)
class Result:
    """What the demo found; `heed demo --json` prints it."""

    bleu: float
    signature: str
    exact_match: float
    alignment_error: float
    alignment_layer: int
    sentences: int
    seconds: float
    run: str


def demo(folder: Path, *, console: Console, seed: int = 0, steps: int | None = None) -> Result:
    """Train, translate, score, draw. The console tells the story as it goes."""
    began = time.monotonic()
    changes = [f"seed={seed}"] + ([f"train.steps={steps}"] if steps else [])
    recipe = Recipe.read(find(RECIPE), changes)
    _make_room(folder)
    _introduce(recipe, console)
    run = engine.start(recipe, folder, device="cpu", console=console)
    translator = Translator.load(folder, device="cpu")
    test = list(world.sentences("test", recipe.data.world_test, seed=seed))
    console.print(f"Translating {len(test):,} sentences of combinations it never saw…")
    hypotheses = translator.translate(s.english for s in test)
    references = [s.french for s in test]
    _show(test, hypotheses, console)
    dev = list(world.sentences("dev", ALIGNED, seed=seed))
    layer = best_layer(_maps(translator, dev), [s.alignment for s in dev])
    maps = _maps(translator, test[:ALIGNED])
    error = alignment_error([m.links(layer) for m in maps], [s.alignment for s in test[:ALIGNED]])
    _draw(run, test, maps, layer)
    score = bleu(hypotheses, references)
    result = Result(
        bleu=score.score,
        signature=score.signature,
        exact_match=exact_match(hypotheses, references),
        alignment_error=error,
        alignment_layer=layer + 1,
        sentences=len(test),
        seconds=round(time.monotonic() - began, 1),
        run=str(folder),
    )
    write_whole(folder / "demo.json", json.dumps(asdict(result), indent=1) + "\n")
    _conclude(result, run, console)
    return result


def _make_room(folder: Path) -> None:
    """A demo may replace an earlier demo, and nothing else."""
    run = Run(folder)
    if not run.recipe_path.exists():
        return
    if not (folder / "demo.json").exists() and run.recipe() != Recipe.read(find(RECIPE)):
        raise RunError(
            "there is a run here that is not a demo.",
            where=str(folder),
            todo="Name another folder with --run.",
        )
    shutil.rmtree(folder)


def _introduce(recipe: Recipe, console: Console) -> None:
    m = recipe.model
    console.print(
        f"[bold]heed demo[/]: a Transformer learns English to French from nothing.\n"
        f"{recipe.data.world:,} generated pairs · {m.layers}+{m.layers} layers, width {m.width}, "
        f"{m.heads} heads, position [cyan]{m.position}[/] · the test holds combinations of words "
        "that training never showed.",
        highlight=False,
    )


def _maps(translator: Translator, sentences: Sequence[world.Sentence]) -> list[CrossMap]:
    """Attention while the reference is written, so that the gold alignment fits its words."""
    pairs = [(s.english, s.french) for s in sentences]
    return cross_maps(translator.model, translator.tokenizer, pairs)


def _show(test: Sequence[world.Sentence], hypotheses: Sequence[str], console: Console) -> None:
    """A few translations beside their references, wrong ones first, words coloured."""
    wrong = [i for i, s in enumerate(test) if hypotheses[i] != s.french]
    right = [i for i, s in enumerate(test) if hypotheses[i] == s.french]
    chosen = sorted(right, key=lambda i: -len(test[i].english))[: SHOWN - 2] + wrong[:2]
    table = Table(title="Held-out sentences", title_justify="left", expand=False)
    for column in ("English", "the model's French", "reference"):
        table.add_column(column, overflow="fold")
    for i in chosen[:SHOWN]:
        shown, reference = coloured(hypotheses[i], test[i].french)
        table.add_row(test[i].english, shown, reference)
    console.print(table)


def coloured(hypothesis: str, reference: str) -> tuple[Text, Text]:
    """Words that agree in green; the model's others in red, the reference's underlined."""
    ours, theirs = hypothesis.split(), reference.split()
    shown, wanted = Text(), Text()
    for kind, i, j, k, n in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        same = kind == "equal"
        for word in ours[i:j]:
            shown.append(word + " ", style="green" if same else "bold red")
        for word in theirs[k:n]:
            wanted.append(word + " ", style="" if same else "underline")
    return shown, wanted


def _draw(run: Run, test: Sequence[world.Sentence], maps: Sequence[CrossMap], layer: int) -> None:
    """Cross-attention of a few sentences, the mean of a layer's heads and each head apart."""
    fitting = [i for i in range(len(maps)) if 8 <= len(maps[i].source_words) <= 14]
    for number, i in enumerate(fitting[:DRAWN], start=1):
        found, links = maps[i], {(t, s) for s, t in test[i].alignment}
        figure = draw.attention_map(
            found.averaged(layer),
            found.target_words,
            found.source_words,
            title=f"Cross-attention, layer {layer + 1}, mean of heads",
            gold=links,
            row_label="written",
            column_label="read",
        )
        draw.save(figure, run.figures / f"attention-{number}")
        heads = draw.attention_grid(
            found.weights_lhnm[layer],
            found.target_words,
            found.source_words,
            title=f"Cross-attention, layer {layer + 1}, by head",
            gold=links,
        )
        draw.save(heads, run.figures / f"attention-{number}-heads")


def _conclude(result: Result, run: Run, console: Console) -> None:
    console.print(
        f"\n[bold]{result.bleu:.2f} BLEU[/] ({result.signature})\n"
        f"[bold]{result.exact_match:.1%}[/] of {result.sentences:,} sentences right to the letter\n"
        f"[bold]{1 - result.alignment_error:.1%}[/] agreement of cross-attention (layer "
        f"{result.alignment_layer}) with the gold alignment (error {result.alignment_error:.3f})\n"
        f"{result.seconds:.0f} s in all · figures in {run.figures}",
        highlight=False,
    )
    console.print(
        "\nNext, try:\n"
        f'  heed translate {run.folder} "The old woman sees the cat."\n'
        "  heed train demo-translate --set model.position=alibi --run runs/alibi\n"
        f"  heed runs {run.folder.parent}",
        highlight=False,
        markup=False,
    )
