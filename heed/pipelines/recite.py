"""What `heed generate` does: prompts as they come in, texts as they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from heed.files import to_json
from heed.pipelines.generate import Continuation, GenerationPipeline
from heed.pipelines.line_io import Lines, write_line


@dataclass(frozen=True)
class Asked:
    """What was asked for of every prompt."""

    length: int
    samples: int = 1
    stop: Sequence[str] = ()
    cut_prompt: bool = False
    json: bool = False
    stream: bool = False
    """Whether to write a text while it is made; of several samples, none is before all are."""


def recite(
    lines: Lines,
    author: GenerationPipeline,
    asked: Asked,
    *,
    out: BinaryIO,
    say: Callable[[str], None],
) -> None:
    """Write the texts of each prompt, one after the other; without any prompt, of a blank one."""
    count = 0
    for group in lines:
        alone = asked.stream and asked.samples == 1 and not asked.json
        for several in [[prompt] for prompt in group] if alone else [group]:
            if alone:
                _aloud(several[0], author, asked, out, say, first=count)
            else:
                _together(several, author, asked, out, say, first=count)
            count += len(several)
    if not count:
        recite([[""]], author, asked, out=out, say=say)


def _together(
    prompts: list[str],
    author: GenerationPipeline,
    asked: Asked,
    out: BinaryIO,
    say: Callable[[str], None],
    *,
    first: int,
) -> None:
    found = author.write(
        prompts,
        length=asked.length,
        samples=asked.samples,
        stop=asked.stop,
        first=first,
        cut_prompt=asked.cut_prompt,
    )
    for number, several in enumerate(found, first + 1):
        for sample, one in enumerate(several):
            write_line(out, to_json(one.facts(sample)) if asked.json else one.whole)
        _warn(number, several, asked, say)
    out.flush()


def _aloud(
    prompt: str,
    author: GenerationPipeline,
    asked: Asked,
    out: BinaryIO,
    say: Callable[[str], None],
    *,
    first: int,
) -> None:
    def tell(_: int, __: int, text: str) -> None:
        out.write(text.encode("utf-8", "replace"))
        out.flush()

    tell(0, 0, prompt)
    (several,) = author.write(
        [prompt],
        length=asked.length,
        stop=asked.stop,
        first=first,
        cut_prompt=asked.cut_prompt,
        tell=tell,
    )
    tell(0, 0, "\n")
    _warn(first + 1, several, asked, say)


def _warn(
    number: int, several: Sequence[Continuation], asked: Asked, say: Callable[[str], None]
) -> None:
    if any(one.ended == "positions" for one in several):
        room = "" if asked.cut_prompt else " (--cut-prompt makes room)"
        say(f"prompt {number}: ended where the model's positions end{room}.")
