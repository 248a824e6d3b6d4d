"""The command line: one function a command, no logic, nothing slow imported before its time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

    resolved, name = command.recipe(recipe, task, train, dev, change, precision)
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
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; without any, a pipe.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Translate sentences or a pipe, one line out for each line in.

    heed translate runs/demo "The old woman sees the cat."

    heed translate runs/demo < input.txt > output.txt
    """
    from heed.api import Translator

    lines = text if text else (line.rstrip("\r\n") for line in sys.stdin)
    for translated in Translator.load(run, device=device).stream(lines):
        typer.echo(translated)


@app.command()
def selfcheck(json: AsJson = False) -> None:
    """Prove on this machine: fused = plain, cached = uncached, resumed = unbroken."""
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
    except BrokenPipeError:  # the reader of our output has gone; there is no one to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
