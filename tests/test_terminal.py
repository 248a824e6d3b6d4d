"""Text that users named is safe to print: no control character reaches a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from heed.errors import HeedError, make_printable
from heed.files import to_json
from heed.terminal import PlainConsole, print_message

any_text = st.text(st.characters())
"""Control characters and lone surrogates included."""


def is_safe(text: str) -> bool:
    text.encode()
    return all(character in "\n\t" or character.isprintable() or ord(character) > 0x9F
               for character in text)  # fmt: skip


@given(any_text)
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = make_printable(text)
    assert is_safe(shown)
    assert "\n" not in shown
    assert make_printable(shown) == shown
    assert is_safe(make_printable(text, multiline=True))


@given(any_text, any_text)
def test_an_error_can_be_printed_whatever_it_names(what: str, where: str) -> None:
    assert is_safe(str(HeedError(what, where=where, todo=what)))


@given(any_text)
def test_json_can_be_printed(text: str) -> None:
    assert is_safe(to_json({"name": text, text: 1}))


@given(any_text)
def test_the_console_prints_names_as_they_are(text: str) -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=80, force_terminal=False)
    table = Table("a")
    table.add_row(Text(text))
    table.add_row(text)
    console.print(table)
    console.print(f"[bold]{text}[/] [nonsense/] :smile:")
    assert is_safe(stream.getvalue())
    assert ":smile:" in stream.getvalue()
    assert "[nonsense/]" in stream.getvalue()


def test_a_command_escapes_names_on_a_terminal(tmp_path: Path) -> None:
    name = "\x1b[31m[red]\x9b7\x07.tsv"
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "heed", "check", name]
    done = subprocess.run(command, cwd=tmp_path, stdout=secondary, stderr=secondary, check=False)
    os.close(secondary)
    shown = b""
    while True:
        try:
            block = os.read(primary, 1 << 16)
        except OSError:  # Linux reports the end of a terminal as an error
            break
        shown += block
    assert done.returncode in (1, 2)
    assert b"\x1b[31m[red]" not in shown
    assert b"\x07" not in shown
    assert "\x9b".encode() not in shown
    assert b"[red]" in shown


def test_a_message_ends_its_lines_between_words() -> None:
    """On a terminal; a path stays whole there, too, and a pipe gets one line."""
    path = "/a/path/of/more/than/twenty/characters"
    text = f"Model: a Transformer with 2 layers.\n  dev: {path} and more"
    out = io.StringIO()
    print_message(PlainConsole(file=out, force_terminal=True, width=20), text)
    lines = out.getvalue().splitlines()
    assert lines == ["Model: a Transformer", "with 2 layers.", "  dev:", path, "and more"]
    out = io.StringIO()
    print_message(PlainConsole(file=out, width=20), text)
    assert out.getvalue() == f"{text}\n"
