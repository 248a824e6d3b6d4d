"""The synthetic corpus: English-French sentence pairs with gold word alignments.

**Text.** Words are separated by single spaces. Punctuation is attached to the word before it
("garden.", "Yesterday,"). Elided words are attached to the next: "l'arbre", "qu'elle".

**Alignment.** Pairs (English word, French word), counting the space-separated words of each text
from 0, sorted. A French word of two parts is aligned with the English of both: "l'homme" with "the"
and "man", "du" with "of" and "the". "Saw" is aligned with both words of "a vu", "not" with "ne" and
"pas", "does" with the verb it supports, "a" with the "de" of "pas de chat". Every word is aligned.

**Tags.** One universal part of speech per word, punctuation not counted: ADJ, ADP, ADV, AUX, CONJ,
DET, NOUN, NUM, PART, PRON, PROPN, SCONJ, VERB. A French word of two parts has both, joined by a
plus: "DET+NOUN", "ADP+DET".

**Grammar.** The English determines the French: the past of a state (be, have, like, want) is the
imperfect, that of every other verb the passé composé; "it" and "they" appear only with the noun
they refer to; no gender has to be guessed.

**Splits.** One in six combinations of adjective and noun, verb and object, and verb and subject is
held out from training by a rule that does not depend on the seed: half of them for dev, half for
test. Every dev or test sentence has at least one combination of its own split and none of the
other's. So no sentence is in two splits, and a good test score means that the grammar was learned.
Every word of dev and test occurs in training unless that is tiny (20,000 pairs are enough).

**Order.** Sentences come in documents of six to ten, each a short story of one speaker. Every
document is drawn from the seed, the split and its number, so any slice can be generated alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

from heed.data.synthetic.documents import Document
from heed.data.synthetic.speakers import STYLES
from heed.errors import DataError, nearest
from heed.files import draft_folder

SPEAKERS: tuple[str, str, str] = (STYLES[0].name, STYLES[1].name, STYLES[2].name)
SPLITS = ("train", "dev", "test")

# Document lengths cycle, so the position of every sentence follows by arithmetic.
LENGTHS = (8, 6, 10, 7, 9)
_STARTS = (0, *accumulate(LENGTHS))


@dataclass(frozen=True, slots=True)
class Sentence:
    """An English sentence, its French translation, and their annotations."""

    english: str
    french: str
    alignment: tuple[tuple[int, int], ...]
    english_tags: tuple[str, ...]
    french_tags: tuple[str, ...]
    speaker: str
    document: int
    index: int


def generate_sentences(
    split: str, count: int, *, seed: int = 0, start: int = 0
) -> Iterator[Sentence]:
    """Generate `count` sentences of a split, in document order, from sentence number `start`.

    They are generated lazily; memory does not grow with `count`.
    """
    if split not in SPLITS:
        raise DataError(
            f"There is no split {split!r}: the synthetic corpus has train, dev and test."
            + nearest(split, SPLITS)
        )
    if count < 0:
        raise DataError(f"Cannot generate {count} sentences.", todo="Ask for 0 or more.")
    if start < 0:
        raise DataError(f"Cannot start at sentence {start}.", todo="Start at 0 or later.")
    document, index = _locate(start)
    return islice(_generate(split, seed, document), index, index + count)


def _locate(sentence: int) -> tuple[int, int]:
    """The document of a sentence, and the sentence's index in it."""
    rounds, rest = divmod(sentence, _STARTS[-1])
    number = max(number for number in range(len(LENGTHS)) if _STARTS[number] <= rest)
    return rounds * len(LENGTHS) + number, rest - _STARTS[number]


def _generate(split: str, seed: int, document: int) -> Iterator[Sentence]:
    """Sentences without end, from the beginning of a document."""
    while True:
        story = Document(split, seed, document)
        for index in range(LENGTHS[document % len(LENGTHS)]):
            yield Sentence(*story.next_sentence(), story.style.name, document, index)
        document += 1


def write_corpus(
    folder: Path, *, train: int, dev: int, test: int, seed: int = 0
) -> dict[str, Path]:
    """Write the three splits as files and return their paths: {"train.en": path, ...}.

    For each split: `.en` and `.fr` (one sentence per line), `.align` (Pharaoh format: "0-0 1-2"),
    `.tsv` (speaker, tab, English) and `.txt` (English in document order, a blank line between
    documents). A file gets its name only when it is complete.
    """
    counts = {"train": train, "dev": dev, "test": test}
    streams = {
        split: generate_sentences(split, count, seed=seed) for split, count in counts.items()
    }
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
    # Another process may be writing the same files: each uses its own draft folder.
    with draft_folder(folder) as temporary:
        unfinished = [temporary / name for name in names]
        with ExitStack() as stack:
            english, french, links, labeled, text = (
                stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in unfinished
            )
            for line in lines:
                english.write(f"{line.english}\n")
                french.write(f"{line.french}\n")
                links.write(" ".join([f"{i}-{j}" for i, j in line.alignment]) + "\n")
                labeled.write(f"{line.speaker}\t{line.english}\n")
                gap = "\n" if line.index == 0 and line.document > 0 else ""
                text.write(f"{gap}{line.english}\n")
        return {
            name: part.replace(folder / name) for name, part in zip(names, unfinished, strict=True)
        }
