"""Shared by all commands: the Typer app, common options, console and JSON output."""

from __future__ import annotations

import io
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from rich.console import Console

    from heed.errors import HeedError


NAME_WIDTH = 9
"""The longest name of a command, so that all panels have their text in one column."""

METAVARS = {
    "--set": "KEY=VALUE",
    "--text": "TEXT",
    "--prompt": "TEXT",
    "--stop": "TEXT",
    "--with": "RUN",
    "--y": "METRIC",
}
"""What help calls the value of a repeatable option; that of others is a FILE."""


class CommandGroup(TyperGroup):
    """The command group. On a closed pipe it exits with 141 (128 + SIGPIPE)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            for option in command.params:
                if isinstance(option, TyperOption) and option.multiple:
                    option.metavar = option.metavar or METAVARS.get(option.opts[0], "FILE")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by panel, each with the first paragraph of its help in full."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            summary = " ".join((command.help or "").split("\n\n")[0].split())
            panel = str(getattr(command, "rich_help_panel", None) or "Commands")
            panels.setdefault(panel, []).append((name.ljust(NAME_WIDTH), summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        from heed.errors import NumberError

        try:
            return super().invoke(ctx)
        except NumberError as error:
            raise error.from_one() from error
        except BrokenPipeError:
            _discard_output()
            raise SystemExit(141) from None
        except Exception as error:
            if hasattr(error, "option_name") and hasattr(error, "possibilities"):
                _suggest_options(error)
            raise


def _suggest_options(error: Any) -> None:
    """Suggest for an unknown option what is spelled like it: an option, or a key of a recipe.

    Typer compares the dashes, too, so that every short option is like every other. `error` is its
    NoSuchOption, a class that has moved between versions.
    """
    from heed.config import SECTIONS
    from heed.errors import nearest

    name = error.option_name.lstrip("-")
    options = [one for one in error.possibilities or () if nearest(name, [one.lstrip("-")])]
    error.possibilities = options or None
    context = error.ctx
    flags = [flag for one in context.command.params for flag in one.opts] if context else []
    if options or "--set" not in flags:
        return
    sections = {section: kind.keys() for section, kind in SECTIONS.items()}
    keys = {key: f"{section}.{key}" for section, names in sections.items() for key in names}
    close = get_close_matches(name.replace("-", "_"), keys, n=1)
    if close:
        error.message = f"{error.message}. Did you mean --set {keys[close[0]]}=…?"


app = typer.Typer(
    name="heed",
    cls=CommandGroup,
    help="Train Transformers from scratch on your own text, see what they attend to, "
    "and know which change was real.",
    epilog="Start with: heed demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its panels leave descriptions 19 of 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _load_plugins(files: list[Path] | None) -> list[Path] | None:
    """Load plug-ins while the command line is parsed, before a run or a recipe is read."""
    if files:
        from heed.plugins import load_plugins

        load_plugins([Path(file) for file in files])
    return files


RunFolder = Annotated[Path, typer.Argument(help="A run folder, created by `heed train`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PluginFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        callback=_load_plugins,
        help="A Python file with your own position or merge (@heed.register); repeat for more.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(help="Weights to use: best, last, or the number of a saved step."),
]
Metric = Annotated[
    str | None,
    typer.Option(help="Metrics, separated by commas: bleu, chrf, ter. Default: all."),
]
Bootstrap = Annotated[
    int,
    typer.Option(
        help="Bootstrap samples for intervals and tests that need them: 100 or more, or 0 for none."
    ),
]
SentencesTo = Annotated[
    Path | None, typer.Option(help="Write every sentence with its BLEU to this TSV file.")
]


class DecodingCommand(TyperCommand):
    """A command whose decoding options take their help from the keys of `[decode]`.

    The help is filled in only when it is printed, because importing recipes is slow.
    """

    def format_help(self, *args: Any, **kwargs: Any) -> None:
        from heed.config import DecodeConfig

        for option in self.params:
            key = DecodeConfig.model_fields.get(option.name or "")
            if key is not None and isinstance(option, TyperOption) and option.help is None:
                option.help = " ".join((key.description or "").split())
        super().format_help(*args, **kwargs)


def console(*, quiet: bool = False) -> Console:
    """The console for messages: standard output, or standard error if `quiet` (with --json)."""
    from heed.terminal import PlainConsole

    return PlainConsole(stderr=quiet)


def print_json(value: object) -> None:
    """Print a value as JSON on one line."""
    from heed.files import to_json

    typer.echo(to_json(value))


def print_text(message: object, *, err: bool = False) -> None:
    """Print a message, on standard error if `err`; control characters in it are escaped."""
    from heed.errors import make_printable

    typer.echo(make_printable(str(message), multiline=True), err=err)


def print_warning(message: str) -> None:
    """Print a warning about the input on standard error, so that the output stays clean."""
    print_text(message, err=True)


class TerminalOutput(io.RawIOBase):
    """A terminal as a stream of bytes that escapes control characters in the UTF-8 text."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def write(self, data: Any) -> int:
        from heed.errors import make_printable

        text = bytes(data).decode("utf-8", "replace")
        return self.stream.write(make_printable(text, multiline=True).encode())

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return True


def output() -> BinaryIO:
    """Standard output as bytes, for commands that answer line by line.

    A file or a pipe gets the text as it is, a terminal gets it with control characters escaped.
    """
    from heed.errors import HeedError

    if sys.stdout is None:
        raise HeedError(
            "the result cannot be written: standard output is closed.",
            todo="Redirect it to a file.",
        )
    if sys.stdout.isatty():
        return cast(BinaryIO, TerminalOutput(sys.stdout.buffer))
    return sys.stdout.buffer


def describe_file_error(problem: OSError) -> HeedError | None:
    """An error message for a file or folder that cannot be used; None if it is a bug in heed."""
    from heed.files import DISK_FULL, describe_os_error

    where = todo = None
    if problem.errno in DISK_FULL:
        where = "standard output, or a file that was being written"
        _flush_output()
    if problem.filename is not None and _in_cache(str(problem.filename)):
        todo = "Set HEED_CACHE to a writable folder with free space."
    return describe_os_error(problem, where=where, todo=todo)


def _flush_output() -> None:
    """Flush standard output, or discard what cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _in_cache(name: str) -> bool:
    from heed.files import cache_root

    return Path(name).is_relative_to(cache_root())


def _discard_output() -> None:
    """Send buffered output to /dev/null, so that the interpreter does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
