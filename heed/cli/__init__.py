"""The command line: one function a command, no logic, nothing slow imported before its time."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from heed import __version__

# Importing these adds their commands to the app, in the order that `heed --help` lists them.
from heed.cli import evaluate, inference, machine, train
from heed.cli.common import app, sentence

# isort: split
from heed.cli import convert

__all__ = ["app", "convert", "evaluate", "inference", "machine", "main", "train"]


def _version(asked: bool) -> None:
    """Say which heed this is, and do nothing else."""
    if asked:
        typer.echo(f"heed {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which heed this is."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options of every command."""
    if debug:
        os.environ["HEED_DEBUG"] = "1"


def main() -> None:
    """Run a command, and end as ranks that trained together must."""
    try:
        _run()
    except SystemExit as end:
        if "heed.train.distributed.ranks" in sys.modules:
            from heed.train.distributed.ranks import leave

            leave(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
        raise


def _run() -> None:
    """Run a command; a mistake a person can mend is a sentence and exit code 2."""
    from heed.errors import HeedError, HeedWarning, StoppedError

    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, HeedWarning):
            typer.echo(f"heed: {message}", err=True)
        else:
            shown(message, category, *place, **more)

    warnings.showwarning = show
    try:
        app()
    except StoppedError as stopped:
        typer.echo(str(stopped), err=True)
        raise SystemExit(stopped.code) from None
    except (HeedError, OSError) as error:
        told = sentence(error) if isinstance(error, OSError) else error
        if told is None or os.environ.get("HEED_DEBUG"):
            raise
        typer.echo(f"heed: {told}", err=True)
        raise SystemExit(2) from None
