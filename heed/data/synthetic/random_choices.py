"""Random choices of the synthetic corpus, and which split may hold a sentence.

`Sampler` makes every random choice. `SentenceDraft` collects the phrases of one sentence and notes
each combination of words in it, so that combinations held out for dev and test never reach
training.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from heed.data.synthetic.lexicon import Adjective, Noun, Verb
from heed.data.synthetic.phrases import I_MYSELF, Agreement, Phrase

T = TypeVar("T")
Word = Noun | Adjective | Verb | str  # a str is a first name
BLOCK = 1024  # random numbers drawn at a time

# The three kinds of combination: an adjective and its noun, a verb and its object, a verb and its
# subject. Of every twelve combinations one is held out for dev and one for test.
DESCRIBED, DONE_TO, DONE_BY = 0, 4, 8
_SPLIT_CYCLE = ("dev", *["train"] * 5, "test", *["train"] * 5)
FORBIDDEN_SPLITS = {"train": ("dev", "test"), "dev": ("test",), "test": ("dev",)}


def split_of_combination(sort: int, word: Adjective | Verb, noun: Noun) -> str:
    """The split that a combination is held out for, or train; independent of the seed."""
    return _SPLIT_CYCLE[(5 * word.index + 7 * noun.index + sort) % len(_SPLIT_CYCLE)]


class Sampler:
    """Uniform draws from SHAKE-128 of a key, independent of the version of any library."""

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
        """One of the options; an option listed twice is twice as likely."""
        return options[self._next() * len(options) >> 16]

    def chance(self, percent: int) -> bool:
        """True with this probability in percent."""
        return self._next() * 100 >> 16 < percent


class Entity(NamedTuple):
    """A person, animal or thing that a clause can be about."""

    noun: Noun | None
    name: str
    agreement: Agreement
    kind: str  # person, animal or thing
    pronoun: str  # he, she, it, they or I


MYSELF = Entity(None, "", I_MYSELF, "person", "I")


def noun_entity(noun: Noun, many: bool) -> Entity:
    """Entity for a noun, in the singular or plural."""
    kind = noun.kind if noun.kind in ("person", "animal") else "thing"
    pronoun = "they" if many else "it"
    if kind == "person" and not many:
        pronoun = "she" if noun.feminine else "he"
    return Entity(noun, "", Agreement(noun.feminine, many), kind, pronoun)


def named_person(name: str, feminine: bool) -> Entity:
    """Entity for a person with a first name."""
    return Entity(None, name, Agreement(feminine, False), "person", "she" if feminine else "he")


class RejectedDraftError(Exception):
    """A draft that its split may not hold, or that is ambiguous or not sensible."""


class SentenceDraft:
    """A sentence under construction: its phrases and the words used in it."""

    __slots__ = (
        "_forbidden",
        "_split",
        "combinations",
        "dated",
        "described",
        "event",
        "has_own_combination",
        "mentioned",
        "phrases",
        "referents",
        "related",
        "timed",
        "vague",
    )

    def __init__(self, split: str) -> None:
        self._split = split
        self._forbidden = FORBIDDEN_SPLITS[split]
        self.phrases: list[Phrase] = []
        self.mentioned: list[Word] = []
        self.referents: list[Entity] = []  # possible referents of a pronoun
        self.described: set[Noun] = set()  # nouns that have an adjective
        self.combinations = 0  # combinations in the text
        self.has_own_combination = (
            split == "train"
        )  # at least one combination is held out for this split
        self.related = False  # has a relative clause
        self.timed = False  # its opener or adverb states a time
        self.dated = False  # a word shows its tense
        self.vague = False  # its subject is indefinite: a man, some goats
        self.event = False  # its opener needs an event: suddenly something happened

    def require(self, holds: bool) -> None:
        """Reject the draft unless this holds."""
        if not holds:
            raise RejectedDraftError

    def length(self) -> int:
        """Number of English words."""
        return sum([len(phrase.english) for phrase in self.phrases])

    def mention(self, about: Entity) -> None:
        """Note a noun or name that a pronoun could refer to."""
        self.add_word(about.noun or about.name)
        self.referents.append(about)

    def add_word(self, word: Word) -> None:
        """Note a word, which must not occur twice: the bird that she likes likes this hat."""
        self.require(word not in self.mentioned)
        self.mentioned.append(word)

    def check_pronoun(self, about: Entity, *, besides: Entity | None = None) -> None:
        """Reject an ambiguous it or they, unless all readings have the same French word.

        `besides` is what the pronoun cannot mean.
        """
        for other in self.referents:
            rival = other.pronoun == about.pronoun and other is not besides
            self.require(not rival or other.agreement.feminine == about.agreement.feminine)

    def note_combination(self, sort: int, word: Adjective | Verb, noun: Noun | None) -> None:
        """Note a combination in the text."""
        if noun is not None:
            self.note_implied(sort, word, noun)
            self.combinations += 1
            self.has_own_combination = (
                self.has_own_combination or split_of_combination(sort, word, noun) == self._split
            )

    def note_implied(self, sort: int, word: Adjective | Verb, noun: Noun | None) -> None:
        """Note an implied combination: through a pronoun, or an omitted subject.

        Training has none that is held out; dev and test have none of each other's. So no sentence
        is in two splits.
        """
        if noun is not None and split_of_combination(sort, word, noun) in self._forbidden:
            raise RejectedDraftError
