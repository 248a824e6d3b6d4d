"""`heed demo`: the whole story on the generated world, from nothing to a drawn attention map."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.text import Text

from heed import plot
from heed.api import Translator
from heed.config import Recipe
from heed.data import synthetic
from heed.errors import RunError, StoppedError
from heed.files import write_atomic
from heed.metrics.alignment_error import alignment_error_rate
from heed.metrics.corpus_bleu import bleu, exact_match
from heed.probe.attention_maps import CrossMap, best_layer, cross_maps
from heed.recipes import find
from heed.runs.run import Run
from heed.terminal import build_table
from heed.train import run as train_run
from heed.train.checkpoint import checksum

RECIPE = "demo-translate"
ALIGNED = 200
"""Sentences whose attention is compared with the gold alignment."""
SIGNED, UNFINISHED = "demo.json", ".unfinished-"
"""What a whole demo leaves, with the names of its files; and where a new one works until then."""
AGAIN = "Begin anew with: heed demo"
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
    changes = [f"seed={seed}"] + ([] if steps is None else [f"train.steps={steps}"])
    recipe = Recipe.read(find(RECIPE), changes)
    with _room(folder) as draft:
        _introduce(recipe, console)
        run = train_run.start(recipe, draft, device="cpu", console=console)
        facts = _story(run, recipe, console)
        seconds = round(time.monotonic() - began, 1)
        result = Result(**facts, seconds=seconds, run=str(folder))
        _sign(draft, result)
    _conclude(result, Run(folder), console)
    return result


def _story(run: Run, recipe: Recipe, console: Console) -> dict[str, Any]:
    """What a trained run is worth, as facts and figures."""
    translator = Translator.load(run.folder, device="cpu")
    test = list(synthetic.sentences("test", recipe.data.synthetic_test, seed=recipe.seed))
    console.print(f"Translating {len(test):,} sentences of combinations it never saw…")
    hypotheses = translator.translate(s.english for s in test)
    references = [s.french for s in test]
    _show(test, hypotheses, console)
    dev = list(synthetic.sentences("dev", ALIGNED, seed=recipe.seed))
    layer = best_layer(_maps(translator, dev), [s.alignment for s in dev])
    maps = _maps(translator, test[:ALIGNED])
    error = alignment_error_rate(
        [m.links(layer) for m in maps], [s.alignment for s in test[:ALIGNED]]
    )
    _draw(run, test, maps, layer)
    score = bleu(hypotheses, references)
    return {
        "bleu": score.score,
        "signature": score.signature,
        "exact_match": exact_match(hypotheses, references),
        "alignment_error": error,
        "alignment_layer": layer + 1,
        "sentences": len(test),
    }


# ------------------------------------------------ a demo takes the place of a demo, of nothing else


@contextmanager
def _room(folder: Path) -> Iterator[Path]:
    """A folder to work in. When all went well, what is in it takes the place of an earlier demo in
    `folder`; if not, `folder` is as it was."""
    _refuse_others(folder)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Inside, for beside it one may not be allowed to write.
        with TemporaryDirectory(prefix=UNFINISHED, dir=folder) as own:
            draft, before = Path(own) / "demo", Path(own) / "before"
            with _none_to_resume(folder):
                yield draft
            _refuse_others(folder)  # it took minutes
            before.mkdir()
            _move(folder, before)
            _move(draft, folder)
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _none_to_resume(folder: Path) -> Iterator[None]:
    """A demo that ends too soon leaves nothing, so its errors name no run to go on with."""
    try:
        yield
    except StoppedError as stopped:
        what = "Stopped; of this demo nothing is kept."
        raise StoppedError(what, todo=AGAIN, code=stopped.code) from stopped
    except RunError as error:
        raise RunError(error.what, where=str(folder), todo=AGAIN) from error


def _move(here: Path, there: Path) -> None:
    """All that is in one folder to another. What names the files as a demo's goes last."""
    names = [path.name for path in here.iterdir() if not path.name.startswith(UNFINISHED)]
    for name in sorted(names, key=SIGNED.__eq__):
        (here / name).rename(there / name)


def _sign(folder: Path, result: Result) -> None:
    """Write the result, and which files are this demo's own."""
    facts = asdict(result) | {"files": _files(folder)}
    write_atomic(folder / SIGNED, json.dumps(facts, indent=1) + "\n")


def _refuse_others(folder: Path) -> None:
    """Nothing is replaced but files that a demo wrote and nobody changed since."""
    found = _files(folder)
    try:
        signed = json.loads((folder / SIGNED).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        signed = {}
    others = [name for name, digest in found.items() if signed.get(name) != digest]
    if signed == {} and (folder / SIGNED).exists():
        others.append(SIGNED)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise RunError(
            f"there are files here that are not a demo's, or were changed: {others[0]}{more}.",
            where=str(folder),
            todo="Name another folder with --run, or move them away.",
        )


def _files(folder: Path) -> dict[str, str]:
    """A hash of every file, by its name; that of a link is where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0].startswith(UNFINISHED) or str(name) == SIGNED:
            continue
        if path.is_symlink():
            found[name.as_posix()] = f"a link to {path.readlink()}"
        elif not path.is_dir():
            found[name.as_posix()] = checksum(path)
    return found


def _introduce(recipe: Recipe, console: Console) -> None:
    m = recipe.model
    console.print(
        f"[bold]heed demo[/]: a Transformer learns English to French from nothing.\n"
        f"{recipe.data.synthetic:,} generated pairs · {m.layers}+{m.layers} layers, "
        f"width {m.width}, "
        f"{m.heads} heads, position [cyan]{m.position}[/] · the test holds combinations of words "
        "that training never showed.",
        highlight=False,
    )


def _maps(translator: Translator, sentences: Sequence[synthetic.Sentence]) -> list[CrossMap]:
    """Attention while the reference is written, so that the gold alignment fits its words."""
    pairs = [(s.english, s.french) for s in sentences]
    return cross_maps(translator.model, translator.tokenizer, pairs)


def _show(test: Sequence[synthetic.Sentence], hypotheses: Sequence[str], console: Console) -> None:
    """A few translations beside their references, words coloured."""
    headers = ("English", "the model's French", "reference")
    table = build_table(*headers, title="Held-out sentences")
    for i in chosen(test, hypotheses):
        shown, reference = coloured(hypotheses[i], test[i].french)
        table.add_row(test[i].english, shown, reference)
    console.print(table)


def chosen(test: Sequence[synthetic.Sentence], hypotheses: Sequence[str]) -> list[int]:
    """Which to show: the longest right ones, then two wrong ones, or more where there is room."""
    right = [i for i, s in enumerate(test) if hypotheses[i] == s.french]
    wrong = [i for i, s in enumerate(test) if hypotheses[i] != s.french]
    wrong = wrong[: max(2, SHOWN - len(right))]
    right.sort(key=lambda i: -len(test[i].english))
    return right[: SHOWN - len(wrong)] + wrong


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


def _draw(
    run: Run, test: Sequence[synthetic.Sentence], maps: Sequence[CrossMap], layer: int
) -> None:
    """Cross-attention of a few sentences, the mean of a layer's heads and each head apart."""
    fitting = [i for i in range(len(maps)) if 8 <= len(maps[i].source_words) <= 14]
    for number, i in enumerate(fitting[:DRAWN], start=1):
        found, links = maps[i], {(t, s) for s, t in test[i].alignment}
        figure = plot.attention_map(
            found.mean_over_heads(layer),
            found.target_words,
            found.source_words,
            title=f"Cross-attention, layer {layer + 1}, mean of heads",
            gold=links,
            row_label="written",
            column_label="read",
        )
        plot.save(figure, run.figures / f"attention-{number}")
        heads = plot.attention_grid(
            found.weights_lhnm[layer],
            found.target_words,
            found.source_words,
            title=f"Cross-attention, layer {layer + 1}, by head",
            gold=links,
        )
        plot.save(heads, run.figures / f"attention-{number}-heads")


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
