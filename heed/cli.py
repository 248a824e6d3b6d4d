"""The command line: one function a command, no logic, nothing slow imported before its time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="heed",
    help="Train Transformers from scratch on your own text, see what they attend to, "
    "and know which change was real.",
    epilog="Begin with: heed demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunFolder = Annotated[Path, typer.Argument(help="A run folder, as `heed train` made it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for a program.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Metric = Annotated[str, typer.Option(help="Any of bleu, chrf, ter, with commas between.")]
Bootstrap = Annotated[int, typer.Option(help="Samples behind each interval and test; 0 is none.")]
SentencesTo = Annotated[
    Path | None, typer.Option(help="Write every sentence with its BLEU to this TSV file.")
]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options of every command."""
    if debug:
        os.environ["HEED_DEBUG"] = "1"


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="Where to put the run.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Another seed gives another corpus and model.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Fewer updates, for a quick look.")] = None,
    json: AsJson = False,
) -> None:
    """Train, translate, score and draw on a generated corpus, in under three minutes."""
    from dataclasses import asdict

    from heed.demo import demo as show

    result = show(run, console=_console(quiet=json), seed=seed, steps=steps)
    if json:
        _print_json(asdict(result))


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe file, or a shipped name (see `heed recipes`).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    train: Annotated[list[str] | None, typer.Option(help="A file to learn from; repeat.")] = None,
    dev: Annotated[list[str] | None, typer.Option(help="A file to choose by; repeat.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder in which the recipe's files are.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the recipe; repeat.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder to make; unset, under runs/.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to use.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take.")
    ] = False,
) -> None:
    """Train a model by a recipe, or on files alone with sensible settings.

    heed train demo-translate --run runs/first

    heed train --task translate --train a.en --train a.fr --dev b.en --dev b.fr
    """
    from heed.train import command, engine

    resolved, name = command.recipe(recipe, task, train, dev, change, precision, data)
    command.use_threads(threads)
    if dry_run:
        command.dry_run(resolved, device=device, console=_console())
    else:
        folder = run or command.free_folder(name)
        engine.start(resolved, folder, device=device, console=_console())


@app.command()
def resume(run: RunFolder, device: Device = "auto") -> None:
    """Go on with a run that was stopped, to the same bits as if it had not been."""
    from heed.train import engine

    engine.resume(run, device=device, console=_console())


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one, every key explained.")] = None,
) -> None:
    """List the shipped recipes, or print one with every key explained."""
    from heed.recipes import names, show

    typer.echo(show(name) if name else "\n".join(names()))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    json: AsJson = False,
) -> None:
    """List runs with their scores."""
    from heed.runs import index, table

    found = index(folder)
    if json:
        _print_json(found)
    else:
        _console().print(table(found))


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Text to look at: splits, or two sides.")],
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Print one batch as training would see it.")
    ] = False,
    json: AsJson = False,
) -> None:
    """The data doctor: what would hurt training or flatter a score, by file and line."""
    if batch:
        from heed.data.doctor.batch import show_batch

        _console().print(show_batch(files, task=task))
        return
    from heed.data.doctor import check as examine
    from heed.data.doctor import render

    report = examine(files, task=task)
    if json:
        typer.echo(report.to_json())
    else:
        _console().print(render(report))
    raise typer.Exit(report.exit_code)


@app.command()
def translate(
    context: typer.Context,
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; without any, a pipe.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Translate the lines of this file.")] = None,
    others: Annotated[
        list[Path] | None, typer.Option("--with", help="Another run to write with this; repeat.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses side by side; 1: greedy.")] = None,
    nbest: Annotated[int, typer.Option(help="Translations of each line, tabs between.")] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="0: the likeliest.")] = None,
    coverage_penalty: Annotated[float | None, typer.Option(help="Against words left out.")] = None,
    early_stop: Annotated[bool | None, typer.Option(help="Take what ended first.")] = None,
    sample: Annotated[bool | None, typer.Option("--sample", help="Draw tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the draws.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from so much probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw what has such a share of it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    copy_unknown: Annotated[
        bool | None, typer.Option("--copy-unknown", help="Copy words that have no translation.")
    ] = None,
    max_ratio: Annotated[float | None, typer.Option(help="Longest output by source…")] = None,
    max_extra: Annotated[int | None, typer.Option(help="…plus so many tokens.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sentences side by side.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="A score after each.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Source-target word pairs after each.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
) -> None:
    """Translate sentences, a file or a pipe, one line out for each line in.

    What is not said here, is as the decode section of the run's recipe has it.

    heed translate runs/demo "The old woman sees the cat."

    heed translate runs/demo --beam 5 --scores < input.txt > output.tsv
    """
    from heed.api import Translator
    from heed.decode import pipe

    settings = pipe.chosen(context.params)  # all flags that [decode] has a key for
    translator = Translator.load(run, *(others or ()), device=device, precision=precision)
    try:
        with pipe.opened(text, file) as lines:
            pipe.pump(
                lines,
                translator.scribe(nbest, alignments, **settings),
                pipe.Shown(scores, alignments, json),
                out=sys.stdout.buffer,
                say=lambda word: typer.echo(word, err=True),
            )
    except BrokenPipeError:
        _reader_left()


@app.command()
def evaluate(
    run: RunFolder,
    test: Annotated[list[str] | None, typer.Option(help="A file to score on; repeat.")] = None,
    split: Annotated[
        str | None, typer.Option(help="dev, test or a named set; unset, test, or else dev.")
    ] = None,
    sentences: SentencesTo = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses side by side; 1 is greedy.")] = None,
    metric: Metric = "bleu,chrf,ter",
    bootstrap: Bootstrap = 1000,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Score a run on held-out text, the part that train does not have beside the whole.

    heed evaluate runs/demo

    heed evaluate runs/mine --test test.en --test test.fr --sentences scores.tsv
    """
    from heed.evaluate import Settings
    from heed.evaluate import evaluate as assess
    from heed.score import command, report

    command.check_resamples(bootstrap)
    command.check_folder(sentences)
    metrics = command.parse_metrics(metric)
    decode = {} if beam is None else {"beam": beam}
    settings = Settings(split, test or (), metrics, bootstrap, sentences, decode)
    console = _console(quiet=json)
    facts = assess(run, settings, device=device, say=console.print)
    if json:
        _print_json(facts)
    else:
        console.print(report.evaluation(facts))


@app.command()
def score(
    hypotheses: Annotated[
        list[Path],
        typer.Argument(help="Translations, one a line; more are held against the first."),
    ],
    ref: Annotated[list[Path], typer.Option(help="References, one a line; repeat for several.")],
    src: Annotated[Path | None, typer.Option(help="Sources, for BLEU by their length.")] = None,
    sentences: SentencesTo = None,
    metric: Metric = "bleu,chrf,ter",
    bootstrap: Bootstrap = 1000,
    seed: Annotated[int | None, typer.Option(help="Of the resampling; unset, sacreBLEU's.")] = None,
    json: AsJson = False,
) -> None:
    """Score translations as sacreBLEU does, with intervals, and test systems against the first.

    heed score out.fr --ref test.fr --src test.en

    heed score before.fr after.fr --ref test.fr
    """
    from heed.score import command, report

    command.check_folder(sentences)
    found = command.score(hypotheses, ref, src, metrics=metric, resamples=bootstrap, seed=seed)
    if sentences is not None:
        sentences.write_text(found.table(), encoding="utf-8")
    if json:
        _print_json(found.facts())
    else:
        _console().print(report.scores(found.facts()))


@app.command()
def bench(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe; without one, the standard shapes.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    train: Annotated[list[str] | None, typer.Option(help="A file to learn from; repeat.")] = None,
    dev: Annotated[list[str] | None, typer.Option(help="A file to choose by; repeat.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the recipe; repeat.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to use.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Run a peer beside it, in turns: transformers.")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates to time; unset, epochs for some seconds.")
    ] = None,
    json: AsJson = False,
) -> None:
    """How fast training is here: tokens/s, share of the machine's peak, memory, start-up.

    heed bench demo-translate

    heed bench --against transformers
    """
    from heed.bench import command

    facts, report = command.bench(
        (recipe, task, train, dev, change, precision),
        device=device,
        threads=threads,
        against=against,
        updates=updates,
        console=_console(quiet=json),
    )
    if json:
        _print_json(facts)
    else:
        _console().print(report)


@app.command()
def selfcheck(json: AsJson = False) -> None:
    """Prove on this machine: fused = plain, cached = uncached, resumed = unbroken, two = one."""
    from dataclasses import asdict

    from heed import selfcheck as checks

    console = _console(quiet=json)
    done = checks.selfcheck(lambda text: console.print(text, highlight=False, markup=False))
    if json:
        _print_json([asdict(check) | {"holds": check.holds} for check in done])
    else:
        console.print(checks.table(done))
    raise typer.Exit(0 if all(check.holds for check in done) else 1)


def _console(*, quiet: bool = False) -> Console:
    """Where a person reads: the terminal, or standard error where a program reads the answer."""
    from rich.console import Console

    return Console(stderr=quiet)


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, ensure_ascii=False))


def main() -> None:
    """Run a command, and end as ranks that trained together must."""
    try:
        _run()
    except SystemExit as end:
        if "heed.train.distributed" in sys.modules:
            from heed.train.distributed import leave

            leave(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
        raise


def _run() -> None:
    """Run a command; a mistake a person can mend is a sentence and exit code 2."""
    from heed.errors import HeedError, StoppedError

    try:
        app()
    except StoppedError as stopped:
        typer.echo(str(stopped), err=True)
        raise SystemExit(130) from None
    except HeedError as error:
        if os.environ.get("HEED_DEBUG"):
            raise
        typer.echo(f"heed: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        _reader_left()


def _reader_left() -> NoReturn:
    """The reader of our output has gone: there is no one to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(141) from None
