"""`heed demo`: train on the generated corpus, translate, score, and plot attention maps."""

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
from heed.checksums import hash_file
from heed.config import Recipe
from heed.data import synthetic
from heed.errors import RunError, StoppedError
from heed.evaluate.evaluate_run import evaluate_run
from heed.evaluate.job import Options
from heed.evaluate.read_outputs import read_systems
from heed.files import write_atomic
from heed.metrics.alignment_error import alignment_error_rate
from heed.metrics.corpus_bleu import exact_match
from heed.probe.attention_maps import AttentionMap, best_layer, map_pairs
from heed.probe.map_figure import draw_head, draw_overview
from heed.recipes import find
from heed.runs.run import Run
from heed.terminal import build_table
from heed.train import run as train_run
from heed.train.resolve import free_folder

RECIPE = "demo-translate"
DEFAULT_FOLDER = Path("runs/demo")
WARMUP_SHARE = 0.2
"""Warm-up of a demo of fewer or more steps, as a share of them: that of the recipe."""
ALIGNED = 200
"""Sentences whose attention is compared with the gold alignment."""
RESULT_FILE, WORK_PREFIX = "demo.json", ".unfinished-"
"""The result of a finished demo, with hashes of its files; the prefix of its working folder."""
RESTART = "Start again with: heed demo"
EXAMPLES = 8
PLOTTED = 3
METRICS = ("bleu", "chrf")
"""TER would take longer than the translations."""


@dataclass(frozen=True)
class Result:
    """The scores of a demo, as `heed demo --json` prints them."""

    bleu: float
    interval: tuple[float, float]
    """Of BLEU, 95%, over the test sentences."""
    signature: str
    exact_match: float
    alignment_error: float
    alignment_layer: int
    sentences: int
    seconds: float
    run: str


def run_demo(
    folder: Path | None,
    *,
    console: Console,
    seed: int = 0,
    steps: int | None = None,
    force: bool = False,
) -> Result:
    """Train, translate, score and plot; progress is printed on the console.

    Without a folder the demo is in runs/demo, or, where there is one already, in runs/demo-2 and so
    on. `force` replaces an earlier demo.
    """
    start = time.monotonic()
    folder = folder or _default_folder(console, force=force)
    changes = [f"seed={seed}"]
    if steps is not None:
        changes += [f"train.steps={steps}", f"train.warmup={int(WARMUP_SHARE * steps)}"]
    recipe = Recipe.read(find(RECIPE), changes)
    with _replace_when_finished(folder, force=force) as work_folder:
        _print_introduction(recipe, console)
        run = train_run.start(recipe, work_folder, device="cpu", console=console)
        scores = _evaluate_and_plot(run, recipe, str(folder), console)
        seconds = round(time.monotonic() - start, 1)
        result = Result(**scores, seconds=seconds, run=str(folder))
        _write_result(work_folder, result)
    _print_summary(result, Run(folder), console)
    return result


def _evaluate_and_plot(run: Run, recipe: Recipe, run_name: str, console: Console) -> dict[str, Any]:
    """Score a trained run on the test set and plot its attention; returns the scores."""
    translator = Translator.load(run.folder, device="cpu")
    count, world_seed = recipe.data.synthetic_test, recipe.data.world_seed
    test = list(synthetic.generate_sentences("test", count, seed=world_seed))
    console.print(f"Translating {len(test):,} sentences with word combinations unseen in training…")
    # As `heed evaluate` scores it, and kept in the run: for `heed report`, `heed runs`, the lab.
    # The table of translations that it writes has the examples to print.
    options = Options(split="test", metrics=METRICS, run_name=run_name)
    scores = evaluate_run(run.folder, options, device="cpu", notify=lambda _: None)
    references = [s.french for s in test]
    [translated] = read_systems([run.folder], [references])
    _print_translations(test, translated.texts, console)
    dev = list(synthetic.generate_sentences("dev", ALIGNED, seed=world_seed))
    layer = best_layer(_cross_maps(translator, dev), [s.alignment for s in dev])
    maps = _cross_maps(translator, test[:ALIGNED])
    error = alignment_error_rate(
        [m.links(layer) for m in maps], [s.alignment for s in test[:ALIGNED]]
    )
    _plot_attention(run, test, maps, layer)
    interval = scores["interval"]["bleu"]
    return {
        "bleu": scores["bleu"],
        "interval": (interval["low"], interval["high"]),
        "signature": scores["signature"]["bleu"],
        "exact_match": exact_match(translated.texts, references),
        "alignment_error": error,
        "alignment_layer": layer + 1,
        "sentences": len(test),
    }


# ------------------------------- with --force a demo replaces an earlier demo, and nothing else


def _default_folder(console: Console, *, force: bool) -> Path:
    """runs/demo, or the first of runs/demo-2, … that does not exist."""
    if force:
        return DEFAULT_FOLDER
    folder = free_folder(DEFAULT_FOLDER.name)
    if folder != DEFAULT_FOLDER:
        console.print(
            f"{DEFAULT_FOLDER} stays as it is; this demo goes to {folder} "
            f"(--force replaces {DEFAULT_FOLDER}).",
            highlight=False,
            markup=False,
        )
    return folder


@contextmanager
def _replace_when_finished(folder: Path, *, force: bool) -> Iterator[Path]:
    """A working folder whose content replaces an earlier demo in `folder`, only on success."""
    _refuse_foreign_files(folder)
    if not force and (folder / RESULT_FILE).exists():
        raise RunError(
            "there is a demo here already.",
            where=str(folder),
            todo="Give another folder with --run, or replace this one with --force.",
        )
    created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Inside the folder: its parent may not be writable.
        with TemporaryDirectory(prefix=WORK_PREFIX, dir=folder) as temporary:
            work_folder, before = Path(temporary) / "demo", Path(temporary) / "before"
            with _without_resume_hint(folder):
                yield work_folder
            _refuse_foreign_files(folder)  # again: training took minutes
            before.mkdir()
            _move_files(folder, before)
            _move_files(work_folder, folder)
    finally:
        if created and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _without_resume_hint(folder: Path) -> Iterator[None]:
    """Change errors that suggest to resume: an interrupted demo leaves no run."""
    try:
        yield
    except StoppedError as stopped:
        what = "Stopped; this demo was discarded."
        raise StoppedError(what, todo=RESTART, code=stopped.code) from stopped
    except RunError as error:
        raise RunError(error.what, where=str(folder), todo=RESTART) from error


def _move_files(source: Path, target: Path) -> None:
    """Move all files of a folder to another, the result file last: it marks a complete demo."""
    names = [path.name for path in source.iterdir() if not path.name.startswith(WORK_PREFIX)]
    for name in sorted(names, key=RESULT_FILE.__eq__):
        (source / name).rename(target / name)


def _write_result(folder: Path, result: Result) -> None:
    """Write the result, with the hashes of the demo's files."""
    content = asdict(result) | {"files": _hash_files(folder)}
    write_atomic(folder / RESULT_FILE, json.dumps(content, indent=1) + "\n")


def _refuse_foreign_files(folder: Path) -> None:
    """Raise an error if the folder has files that no demo wrote, or that were changed since."""
    hashes = _hash_files(folder)
    try:
        recorded = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        recorded = {}
    foreign = [name for name, digest in hashes.items() if recorded.get(name) != digest]
    if recorded == {} and (folder / RESULT_FILE).exists():
        foreign.append(RESULT_FILE)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise RunError(
            f"this folder has files that no demo wrote, or that were changed: {foreign[0]}{more}.",
            where=str(folder),
            todo="Give another folder with --run, or move the files away.",
        )


def _hash_files(folder: Path) -> dict[str, str]:
    """The hash of every file by name; for a symbolic link, its target."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0].startswith(WORK_PREFIX) or str(name) == RESULT_FILE:
            continue
        if path.is_symlink():
            hashes[name.as_posix()] = f"a link to {path.readlink()}"
        elif not path.is_dir():
            hashes[name.as_posix()] = hash_file(path)
    return hashes


def _print_introduction(recipe: Recipe, console: Console) -> None:
    m = recipe.model
    console.print(
        "[bold]heed demo[/]: a Transformer learns English to French from scratch.\n"
        f"{recipe.data.synthetic:,} generated pairs · {m.layers}+{m.layers} layers, "
        f"width {m.width}, "
        f"{m.heads} heads, position [cyan]{m.position}[/] · the test set has "
        "word combinations unseen in training.",
        highlight=False,
        markup=True,
    )


def _cross_maps(
    translator: Translator, sentences: Sequence[synthetic.Sentence]
) -> list[AttentionMap]:
    """Cross-attention of the reference translations: the gold alignment is about their words."""
    pairs, limit = [(s.english, s.french) for s in sentences], translator.max_length - 1
    maps = map_pairs(translator.model, translator.tokenizer, pairs, max_source=limit)
    return [one.get("cross") for one in maps]


def _print_translations(
    test: Sequence[synthetic.Sentence], hypotheses: Sequence[str], console: Console
) -> None:
    """Print a few translations beside their references, with colored words."""
    headers = ("English", "the model's French", "reference")
    table = build_table(*headers, title="Held-out sentences")
    for i in choose_examples(test, hypotheses):
        shown, reference = color_words(hypotheses[i], test[i].french)
        table.add_row(test[i].english, shown, reference)
    console.print(table)


def choose_examples(test: Sequence[synthetic.Sentence], hypotheses: Sequence[str]) -> list[int]:
    """The examples to print: the longest correct ones, then at least two wrong ones."""
    right = [i for i, s in enumerate(test) if hypotheses[i] == s.french]
    wrong = [i for i, s in enumerate(test) if hypotheses[i] != s.french]
    wrong = wrong[: max(2, EXAMPLES - len(right))]
    right.sort(key=lambda i: -len(test[i].english))
    return right[: EXAMPLES - len(wrong)] + wrong


def color_words(hypothesis: str, reference: str) -> tuple[Text, Text]:
    """Equal words in green; other words red in the hypothesis, underlined in the reference."""
    ours, theirs = hypothesis.split(), reference.split()
    left, right = Text(), Text()
    for kind, i, j, k, n in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        equal = kind == "equal"
        for word in ours[i:j]:
            left.append(word + " ", style="green" if equal else "bold red")
        for word in theirs[k:n]:
            right.append(word + " ", style="" if equal else "underline")
    return left, right


def _plot_attention(
    run: Run, test: Sequence[synthetic.Sentence], maps: Sequence[AttentionMap], layer: int
) -> None:
    """Plot the cross-attention of a few sentences: the mean of a layer's heads, and every head."""
    fitting = [i for i in range(len(maps)) if 8 <= len(maps[i].keys.word_texts) <= 14]
    for number, i in enumerate(fitting[:PLOTTED], start=1):
        cross = maps[i].with_gold(test[i].alignment).by_word()
        plot.save(draw_head(cross, layer), run.figures / f"attention-{number}")
        plot.save(draw_overview(cross), run.figures / f"attention-{number}-heads")


def _print_summary(result: Result, run: Run, console: Console) -> None:
    console.print(
        f"\n[bold]{result.bleu:.2f} BLEU[/], 95% interval {result.interval[0]:.2f} to "
        f"{result.interval[1]:.2f} ({result.signature})\n"
        f"[bold]{result.exact_match:.1%}[/] of {result.sentences:,} sentences equal "
        "their reference\n"
        f"[bold]{1 - result.alignment_error:.1%}[/] agreement of cross-attention (layer "
        f"{result.alignment_layer}) with the gold alignment (error {result.alignment_error:.3f})",
        highlight=False,
        markup=True,
    )
    console.print(
        f"{result.seconds:.0f} s in total · figures in {run.figures}: loss.png, attention-1.png\n"
        "\nNext, try:\n"
        f'  heed translate {run.folder} "The old woman sees the cat."\n'
        f'  heed attend {run.folder} "The old woman sees the cat." --out map.html\n'
        f"  heed report {run.folder}\n"
        "  heed train demo-translate --set model.position=alibi --run runs/alibi\n"
        f"  heed lab {run.folder.parent}      after pip install '.[lab]'",
        highlight=False,
        markup=False,
    )
