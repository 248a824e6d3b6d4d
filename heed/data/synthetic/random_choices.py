"""How a sentence is drawn, and which split owns it.

`Dice` makes every random choice of the generated world. `Draft` gathers the pieces of one
sentence and notes each combination of words in it, so that combinations kept for dev and test
never reach training.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from heed.data.synthetic.lexicon import Adjective, Noun, Verb
from heed.data.synthetic.phrases import I_MYSELF, Agreement, Piece

T = TypeVar("T")
Word = Noun | Adjective | Verb | str  # a str is a first name
BLOCK = 1024  # draws made at a time

# The three sorts of combination: an adjective and its noun, a verb and its object, a verb and
# its subject. Of every twelve combinations one is kept for dev and one for test.
DESCRIBED, DONE_TO, DONE_BY = 0, 4, 8
_OWNERS = ("dev", *["train"] * 5, "test", *["train"] * 5)
BARRED = {"train": ("dev", "test"), "dev": ("test",), "test": ("dev",)}


def owner(sort: int, word: Adjective | Verb, noun: Noun) -> str:
    """The split that a combination is kept for, or train. The rule knows no seed."""
    return _OWNERS[(5 * word.index + 7 * noun.index + sort) % len(_OWNERS)]


class Dice:
    """Even draws from SHAKE-128 of a key: no library's generator can change under them."""

    def __init__(self, key: str) -> None:
        self._next = self._draws(key).__next__

    @staticmethod
    def _draws(key: str) -> Iterator[int]:
        block = 0
        while True:
            raw = hashlib.shake_128(f"{key}/{block}".encode()).digest(2 * BLOCK)
            yield from struct.unpack(f"<{BLOCK}H", raw)
            block += 1

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; one that is listed twice is twice as likely."""
        return options[self._next() * len(options) >> 16]

    def chance(self, percent: int) -> bool:
        """True so many times in a hundred."""
        return self._next() * 100 >> 16 < percent


class Entity(NamedTuple):
    """Somebody or something that a clause can be about."""

    noun: Noun | None
    name: str
    agreement: Agreement
    kind: str  # person, animal or thing
    pronoun: str  # he, she, it, they or I


MYSELF = Entity(None, "", I_MYSELF, "person", "I")


def entity(noun: Noun, many: bool) -> Entity:
    """A noun as somebody or something in a story."""
    kind = noun.kind if noun.kind in ("person", "animal") else "thing"
    pronoun = "they" if many else "it"
    if kind == "person" and not many:
        pronoun = "she" if noun.feminine else "he"
    return Entity(noun, "", Agreement(noun.feminine, many), kind, pronoun)


def named(name: str, feminine: bool) -> Entity:
    """A person known by a first name."""
    return Entity(None, name, Agreement(feminine, False), "person", "she" if feminine else "he")


class UnsuitableError(Exception):
    """A draft that its split may not hold, or that is not settled or not sensible."""


class Draft:
    """A sentence in the making: its pieces, and what was said in it."""

    __slots__ = (
        "_barred",
        "_own",
        "combinations",
        "dated",
        "described",
        "event",
        "kept",
        "mentioned",
        "pieces",
        "referents",
        "related",
        "timed",
        "vague",
    )

    def __init__(self, split: str) -> None:
        self._own = split
        self._barred = BARRED[split]
        self.pieces: list[Piece] = []
        self.mentioned: list[Word] = []
        self.referents: list[Entity] = []  # who and what a pronoun could mean
        self.described: set[Noun] = set()  # nouns that have an adjective
        self.combinations = 0  # how many stand in the text
        self.kept = split == "train"  # one of them is kept for this split
        self.related = False  # it has its relative clause
        self.timed = False  # its opener or adverb says when
        self.dated = False  # something said shows its tense
        self.vague = False  # its subject is just somebody: a man, some goats
        self.event = False  # its opener asks for an event: suddenly something happened

    def must(self, holds: bool) -> None:
        """Give the draft up unless this holds."""
        if not holds:
            raise UnsuitableError

    def length(self) -> int:
        """How many English words it has."""
        return sum([len(piece.english) for piece in self.pieces])

    def mention(self, about: Entity) -> None:
        """Note a noun or a name that a pronoun could mean."""
        self.say(about.noun or about.name)
        self.referents.append(about)

    def say(self, word: Word) -> None:
        """Note a word that no sentence has twice: the bird that she likes likes this hat."""
        self.must(word not in self.mentioned)
        self.mentioned.append(word)

    def refer(self, about: Entity, *, besides: Entity | None = None) -> None:
        """Say it or they only where nothing else in the sentence could be meant, or where it
        would be the same French word. `besides` is what the pronoun cannot mean."""
        for other in self.referents:
            rival = other.pronoun == about.pronoun and other is not besides
            self.must(not rival or other.agreement.feminine == about.agreement.feminine)

    def combine(self, sort: int, word: Adjective | Verb, noun: Noun | None) -> None:
        """Note a combination that stands in the text."""
        if noun is not None:
            self.imply(sort, word, noun)
            self.combinations += 1
            self.kept = self.kept or owner(sort, word, noun) == self._own

    def imply(self, sort: int, word: Adjective | Verb, noun: Noun | None) -> None:
        """Note a combination that is only meant: through a pronoun, or a subject left out.

        Training holds none that is kept back, dev and test none of each other's: so the three
        share no sentence.
        """
        if noun is not None and owner(sort, word, noun) in self._barred:
            raise UnsuitableError
