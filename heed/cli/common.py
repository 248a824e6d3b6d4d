"""What commands share: the app they belong to, options that mean the same everywhere, output."""

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


def console(*, quiet: bool = False) -> Console:
    """Where a person reads: the terminal, or standard error where a program reads the answer."""
    from rich.console import Console

    return Console(stderr=quiet)


def print_json(value: object) -> None:
    """An answer for a program, on one line."""
    import json

    typer.echo(json.dumps(value, ensure_ascii=False))


def reader_left() -> NoReturn:
    """The reader of our output has gone: there is no one to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(141) from None
