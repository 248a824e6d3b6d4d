"""The generated world: English and French sentence pairs with gold alignments, as many as asked.

**Text.** Words are split by single spaces. Punctuation is written as in print, stuck to the word
before it ("garden.", "Yesterday,"). Elided words are stuck to the next: "l'arbre", "qu'elle".

**Alignment.** Pairs (English word, French word), counting the space-separated words of each text
from 0, sorted. A French word of two parts goes with the English of both: "l'homme" with "the" and
"man", "du" with "of" and "the". "Saw" goes with both words of "a vu", "not" with "ne" and "pas",
"does" with the verb it helps, "a" with the "de" of "pas de chat". No word is left alone.

**Tags.** One universal part of speech a word, punctuation left aside: ADJ, ADP, ADV, AUX, CONJ,
DET, NOUN, NUM, PART, PRON, PROPN, SCONJ, VERB. A French word of two parts has both, joined by a
plus: "DET+NOUN", "ADP+DET".

**Grammar.** The English settles the French: the past of a state (be, have, like, want) is the
imperfect, that of every other verb the passé composé; "it" and "they" appear only with the noun
they stand for; nobody's gender has to be guessed.

**Splits.** One in six combinations of adjective and noun, verb and object, and verb and subject
is kept out of training by a rule that knows no seed: half of them for dev, half for test. Every
dev or test sentence has one of its own split's or more, and none of the other's. So no sentence is
in two splits, and a good score on test means that the grammar was learnt. Every word of dev and
test does occur in training, if that is not tiny (20,000 pairs are enough).

**Order.** Sentences come in documents of six to ten, each one speaker's little story. Every
document is drawn from the seed, the split and its own number, so any slice can be made alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from heed.data.synthetic.documents import Story
from heed.data.synthetic.speakers import HABITS
from heed.errors import DataError, nearest

SPEAKERS: tuple[str, str, str] = (HABITS[0].name, HABITS[1].name, HABITS[2].name)
SPLITS = ("train", "dev", "test")

# Documents take these lengths in turn, so the place of every sentence is known by arithmetic.
LENGTHS = (8, 6, 10, 7, 9)
_STARTS = (0, *accumulate(LENGTHS))


@dataclass(frozen=True, slots=True)
class Sentence:
    """An English sentence, its French translation, and all that is known of the two."""

    english: str
    french: str
    alignment: tuple[tuple[int, int], ...]
    english_tags: tuple[str, ...]
    french_tags: tuple[str, ...]
    speaker: str
    document: int
    index: int


def sentences(split: str, count: int, *, seed: int = 0, start: int = 0) -> Iterator[Sentence]:
    """`count` sentences of a split, in text order, from sentence number `start`.

    They are made as they are asked for; memory does not grow with `count`.
    """
    if split not in SPLITS:
        raise DataError(
            f"There is no split {split!r}: the generated world has train, dev and test."
            + nearest(split, SPLITS)
        )
    if count < 0:
        raise DataError(f"Cannot generate {count} sentences.", todo="Ask for 0 or more.")
    if start < 0:
        raise DataError(f"Cannot start at sentence {start}.", todo="Start at 0 or later.")
    document, index = _find(start)
    return islice(_stream(split, seed, document), index, index + count)


def _find(place: int) -> tuple[int, int]:
    """The document that holds a sentence, and the sentence's place in it."""
    rounds, rest = divmod(place, _STARTS[-1])
    turn = max(turn for turn in range(len(LENGTHS)) if _STARTS[turn] <= rest)
    return rounds * len(LENGTHS) + turn, rest - _STARTS[turn]


def _stream(split: str, seed: int, document: int) -> Iterator[Sentence]:
    """Sentences without end, from the beginning of a document."""
    while True:
        story = Story(split, seed, document)
        for index in range(LENGTHS[document % len(LENGTHS)]):
            yield Sentence(*story.tell(), story.habits.name, document, index)
        document += 1


def write(folder: Path, *, train: int, dev: int, test: int, seed: int = 0) -> dict[str, Path]:
    """Write the three splits as files, and say where: {"train.en": path, ...}.

    For each split: `.en` and `.fr` (a sentence a line), `.align` (Pharaoh: "0-0 1-2"), `.tsv`
    (speaker, tab, English) and `.txt` (English in text order, a blank line between documents).
    A file appears under its own name only when it is whole.
    """
    counts = {"train": train, "dev": dev, "test": test}
    streams = {split: sentences(split, count, seed=seed) for split, count in counts.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"Cannot make this folder: {error.strerror}.",
            where=str(folder),
            todo="Choose a folder that can be written to.",
        ) from error
    paths: dict[str, Path] = {}
    for split, lines in streams.items():
        paths |= _write_split(folder, split, lines)
    return paths


def _write_split(folder: Path, split: str, lines: Iterator[Sentence]) -> dict[str, Path]:
    names = [f"{split}.{ending}" for ending in ("en", "fr", "align", "tsv", "txt")]
    # Another process may be writing the same world here: each has its own unfinished files.
    with TemporaryDirectory(prefix=".unfinished-", dir=folder) as own:
        unfinished = [Path(own) / name for name in names]
        with ExitStack() as stack:
            english, french, links, labelled, text = (
                stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in unfinished
            )
            for line in lines:
                english.write(f"{line.english}\n")
                french.write(f"{line.french}\n")
                links.write(" ".join([f"{i}-{j}" for i, j in line.alignment]) + "\n")
                labelled.write(f"{line.speaker}\t{line.english}\n")
                gap = "\n" if line.index == 0 and line.document > 0 else ""
                text.write(f"{gap}{line.english}\n")
        return {
            name: part.replace(folder / name) for name, part in zip(names, unfinished, strict=True)
        }
