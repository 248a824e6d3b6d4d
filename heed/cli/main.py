"""The entry point of `heed`: every command, the options they share, and how errors are printed."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any

import typer

from heed import __version__

# Importing these modules registers their commands, in the order that `heed --help` lists them.
# isort: off
from heed.cli import train, predict, evaluate, compare, study, probe, lab, convert, diagnostics

# isort: on
from heed.cli.common import app, describe_file_error, print_text

__all__ = [
    "app",
    "compare",
    "convert",
    "diagnostics",
    "evaluate",
    "lab",
    "main",
    "predict",
    "probe",
    "study",
    "train",
]


def _print_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        typer.echo(f"heed {__version__}")
        raise typer.Exit


@app.callback()
def common_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options that every command has."""
    if debug:
        os.environ["HEED_DEBUG"] = "1"


def wait_without_spinning() -> None:
    """Let CPU threads sleep while they wait for each other, on a machine that is busy already.

    By default they spin for as long as a small operation takes. On idle cores that saves the time
    of waking up. Where other processes want the cores, a thread spins while the one that it waits
    for is not run: a step took 20 times as long. OpenMP reads this when torch is loaded.
    """
    with suppress(OSError, AttributeError):  # not every system has a load average
        if os.getloadavg()[0] >= (os.cpu_count() or 1):
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main() -> None:
    """Run the command line; after distributed training, end all ranks with one exit code."""
    wait_without_spinning()
    try:
        _run_command()
    except SystemExit as end:
        if "heed.train.distributed.ranks" in sys.modules:
            from heed.train.distributed.ranks import exit_process

            exit_process(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
        raise


def _run_command() -> None:
    """Run a command; an error that the user can fix is printed as a sentence, with exit code 2."""
    from heed.errors import HeedError, HeedWarning, StoppedError

    default_showwarning = warnings.showwarning

    def showwarning(
        message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any
    ) -> None:
        if issubclass(category, HeedWarning):
            print_text(f"heed: {message}", err=True)
        else:
            default_showwarning(message, category, *args, **kwargs)

    warnings.showwarning = showwarning
    try:
        app()
    except StoppedError as stopped:
        print_text(str(stopped), err=True)
        raise SystemExit(stopped.code) from None
    except (HeedError, OSError) as error:
        message = describe_file_error(error) if isinstance(error, OSError) else error
        if message is None or os.environ.get("HEED_DEBUG"):
            raise
        print_text(f"heed: {message}", err=True)
        raise SystemExit(2) from None
