"""What commands share: the app they belong to, options that mean the same everywhere, output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from rich.console import Console

    from heed.errors import HeedError


class Commands(TyperGroup):
    """All commands. One whose output nobody reads any more ends as by the signal of that."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            raise SystemExit(141) from None


app = typer.Typer(
    name="heed",
    cls=Commands,
    help="Train Transformers from scratch on your own text, see what they attend to, "
    "and know which change was real.",
    epilog="Begin with: heed demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunFolder = Annotated[Path, typer.Argument(help="A run folder, as `heed train` made it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, for a program.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Metric = Annotated[
    str | None, typer.Option(help="Any of bleu, chrf, ter, with commas between; unset, all.")
]
Bootstrap = Annotated[int, typer.Option(help="Samples behind each interval and test; 0 is none.")]
SentencesTo = Annotated[
    Path | None, typer.Option(help="Write every sentence with its BLEU to this TSV file.")
]


class Decoding(TyperCommand):
    """A command some of whose flags are keys of `[decode]`: their help is that of the key.

    It is looked up when someone asks for it: recipes load what no other help needs.
    """

    def format_help(self, *args: Any, **more: Any) -> None:
        from heed.config import DecodeConfig

        for option in self.params:
            key = DecodeConfig.model_fields.get(option.name or "")
            if key is not None and isinstance(option, TyperOption) and option.help is None:
                option.help = " ".join((key.description or "").split())
        super().format_help(*args, **more)


def console(*, quiet: bool = False) -> Console:
    """Where a person reads: the terminal, or standard error where a program reads the answer."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise  # for the group of commands, not with a code of rich's own

    return Screen(stderr=quiet)


def print_json(value: object) -> None:
    """An answer for a program, on one line."""
    from heed.files import to_json

    typer.echo(to_json(value))


def output() -> BinaryIO:
    """Where a command writes that answers line by line."""
    from heed.errors import HeedError

    if sys.stdout is None:
        raise HeedError(
            "there is nowhere to write: standard output is closed.", todo="Send it to a file."
        )
    return sys.stdout.buffer


def sentence(problem: OSError) -> HeedError | None:
    """What to tell of a file or folder that cannot be used; None for what is another's fault."""
    from heed.files import DISK_FULL, describe_os_error

    where = todo = None
    if problem.errno in DISK_FULL:
        where = "standard output, or a file that was being written"
        _let_go()
    if problem.filename is not None and _in_cache(str(problem.filename)):
        todo = "Set HEED_CACHE to a folder that you may write in and that has room."
    return describe_os_error(problem, where=where, todo=todo)


def _let_go() -> None:
    """Write what is left to standard output, if it can be written."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _in_cache(name: str) -> bool:
    from heed.data.token_store import cache_root

    return Path(name).is_relative_to(cache_root())


def _drop_output() -> None:
    """What is still to be written goes nowhere, so that the interpreter does not try it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
