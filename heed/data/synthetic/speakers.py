"""The three speakers of the synthetic corpus: tense, topics, favorite words and sentence length.

No feature is certain, so identifying a speaker takes the whole sentence, not one keyword. Nearly
everything here is a weighted list, built once, that clauses and documents draw from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heed.data.synthetic.lexicon import ADJECTIVES, NOUNS, VERB, VERBS, Adjective, Noun, Verb
from heed.data.synthetic.phrases import FUTURE, PAST, PRESENT, Phrase, parse_phrase

# How many times likelier a speaker's favorite words are than other words.
FAVORITE_ADJECTIVE, FAVORITE_VERB = 6, 4
# Words that combine with few nouns are drawn more often for those, or they would be too rare to
# learn; verbs of state do not follow another verb, which is compensated likewise.
FEW, RARE_WEIGHT, STATE_WEIGHT = 24, 4, 2


def expand_weights(weights: Mapping[str, int]) -> tuple[str, ...]:
    """A list to draw from, with each word as often as its weight says."""
    return tuple(word for word, weight in weights.items() for _ in range(weight))


@dataclass(frozen=True, slots=True, eq=False)
class Opener:
    """Words that begin a sentence, the tenses they fit, and whether a comma follows."""

    phrase: Phrase
    tenses: frozenset[str]
    comma: bool = True


def _opener(english: str, french: str, links: str, *tenses: str, comma: bool = True) -> Opener:
    return Opener(parse_phrase(english, french, links), frozenset(tenses), comma)


_ANY = (PAST, PRESENT, FUTURE)
OPENERS = {
    "yesterday": _opener("yesterday/ADV", "hier/ADV", "0-0", PAST),
    "last night": _opener("last/ADJ night/NOUN", "hier/ADV soir/NOUN", "0-0 1-1", PAST),
    "one day": _opener("one/NUM day/NOUN", "un/NUM jour/NOUN", "0-0 1-1", PAST, FUTURE),
    "suddenly": _opener("suddenly/ADV", "soudain/ADV", "0-0", PAST, PRESENT),
    "then": _opener("then/ADV", "puis/ADV", "0-0", *_ANY, comma=False),
    "finally": _opener("finally/ADV", "finalement/ADV", "0-0", *_ANY),
    "today": _opener("today/ADV", "aujourd'hui/ADV", "0-0", PRESENT),
    "now": _opener("now/ADV", "maintenant/ADV", "0-0", PRESENT),
    "every day": _opener("every/DET day/NOUN", "chaque/DET jour/NOUN", "0-0 1-1", PRESENT),
    "sometimes": _opener("sometimes/ADV", "parfois/ADV", "0-0", PRESENT),
    "in the evening": _opener(
        "in/ADP the/DET evening/NOUN", "le/DET soir/NOUN", "0-0 1-0 2-1", PRESENT
    ),
    "in the morning": _opener(
        "in/ADP the/DET morning/NOUN", "le/DET matin/NOUN", "0-0 1-0 2-1", PRESENT
    ),
    "this morning": _opener("this/DET morning/NOUN", "ce/DET matin/NOUN", "0-0 1-1", PAST),
    "this evening": _opener("this/DET evening/NOUN", "ce/DET soir/NOUN", "0-0 1-1", FUTURE),
    "tomorrow": _opener("tomorrow/ADV", "demain/ADV", "0-0", FUTURE),
    "soon": _opener("soon/ADV", "bientôt/ADV", "0-0", FUTURE),
    "perhaps": _opener("perhaps/ADV", "peut-être/ADV que/SCONJ", "0-0 0-1", *_ANY, comma=False),
    "of course": _opener("of/ADP course/NOUN", "bien/ADV sûr/ADJ", "0-0 1-1", *_ANY),
    "luckily": _opener("luckily/ADV", "heureusement/ADV", "0-0", *_ANY),
    "sadly": _opener("sadly/ADV", "malheureusement/ADV", "0-0", *_ANY),
    "however": _opener("however/ADV", "cependant/ADV", "0-0", *_ANY),
}
# Openers that may also end a clause, by tense.
CLOSERS = {
    PAST: ("yesterday", "this morning"),
    PRESENT: ("today", "now", "every day"),
    FUTURE: ("tomorrow", "this evening"),
}

DEGREES = {
    "very": parse_phrase("very/ADV", "très/ADV", "0-0"),
    "too": parse_phrase("too/ADV", "trop/ADV", "0-0"),
    "so": parse_phrase("so/ADV", "si/ADV", "0-0"),
    "really": parse_phrase("really/ADV", "vraiment/ADV", "0-0"),
    "rather": parse_phrase("rather/ADV", "plutôt/ADV", "0-0"),
}
MANNERS = {
    "slowly": parse_phrase("slowly/ADV", "lentement/ADV", "0-0"),
    "quickly": parse_phrase("quickly/ADV", "rapidement/ADV", "0-0"),
    "softly": parse_phrase("softly/ADV", "doucement/ADV", "0-0"),
}


# Determiners by: family, other person or anything else; mentioned before in the document; plural.
# In French, my girl means my daughter and his woman his wife, so only family has possessives.
DETERMINERS = {
    ("family", False, False): expand_weights({"my": 30, "his": 30, "her": 30, "the": 10}),
    ("family", False, True): expand_weights({"my": 30, "his": 30, "her": 30, "two": 10}),
    ("family", True, False): expand_weights({"my": 28, "his": 28, "her": 28, "the": 16}),
    ("family", True, True): expand_weights({"my": 30, "his": 30, "her": 30, "the": 10}),
    ("person", False, False): expand_weights({"a": 70, "the": 20, "this": 10}),
    ("person", False, True): expand_weights(
        {"a": 36, "two": 16, "three": 16, "four": 12, "the": 20}
    ),
    ("person", True, False): expand_weights({"the": 75, "this": 15, "a": 6, "each": 4}),
    ("person", True, True): expand_weights(
        {"the": 66, "this": 16, "two": 4, "three": 4, "four": 4, "a": 6}
    ),
    ("thing", False, False): expand_weights(
        {"a": 55, "the": 20, "this": 7, "my": 6, "his": 6, "her": 6}
    ),
    ("thing", False, True): expand_weights(
        {"a": 36, "two": 16, "three": 16, "four": 12, "the": 20}
    ),
    ("thing", True, False): expand_weights(
        {"the": 62, "this": 12, "a": 8, "each": 3, "my": 5, "his": 5, "her": 5}
    ),
    ("thing", True, True): expand_weights(
        {
            "the": 54,
            "this": 14,
            "two": 4,
            "three": 4,
            "four": 4,
            "a": 8,
            "my": 4,
            "his": 4,
            "her": 4,
        }
    ),
}
KNOWN = expand_weights({"the": 82, "this": 18})
OF_PLACES = expand_weights({"the": 82, "this": 8, "a": 10})


@dataclass(frozen=True, slots=True, eq=False)
class SpeakerStyle:
    """Style of one speaker: weighted lists, probabilities in percent, and favorite words."""

    name: str
    tenses: tuple[str, ...]
    topics: tuple[str, ...]
    forms: tuple[str, ...]
    adverbs: tuple[str, ...]
    degrees: tuple[str, ...]
    openers: Mapping[str, tuple[str, ...]]
    described: int  # percent of nouns with an adjective
    related: int  # percent of noun phrases with a relative clause
    opened: int  # percent of sentences with an opener
    extended: int  # percent of clauses with a place, a companion or a time
    myself: int  # percent of clauses with subject I
    adjectives: Mapping[Noun, tuple[Adjective, ...]]
    colors: Mapping[Noun, tuple[Adjective, ...]]
    actions: Mapping[tuple[str, Noun], tuple[Verb, ...]]  # by kind of subject, and object
    doings: Mapping[Noun, tuple[Verb, ...]]  # by subject; verbs without an object


def _weight(word: Adjective | Verb, speaker: int) -> int:
    favorite = word.index % 3 == speaker
    if isinstance(word, Adjective):
        weight, nouns = FAVORITE_ADJECTIVE if favorite else 1, word.nouns
    else:
        weight, nouns = FAVORITE_VERB if favorite else 1, word.objects
        weight *= STATE_WEIGHT if word.state else 1
    return weight * RARE_WEIGHT if 0 < len(nouns) <= FEW else weight


def _adjectives(speaker: int, *, colors: bool) -> dict[Noun, tuple[Adjective, ...]]:
    return {
        noun: tuple(
            adjective
            for adjective in ADJECTIVES
            if noun in adjective.nouns and (adjective.color or not colors)
            for _ in range(_weight(adjective, speaker))
        )
        for noun in NOUNS
    }


def _actions(speaker: int) -> dict[tuple[str, Noun], tuple[Verb, ...]]:
    """Verbs that a person or an animal can apply to a noun; not give, which needs a recipient."""
    kinds = {kind: next(n for n in NOUNS if n.kind == kind) for kind in ("person", "animal")}
    return {
        (kind, noun): tuple(
            verb
            for verb in VERBS
            if noun in verb.objects and example in verb.subjects and verb is not VERB["give"]
            for _ in range(_weight(verb, speaker))
        )
        for kind, example in kinds.items()
        for noun in NOUNS
    }


def _doings(speaker: int) -> dict[Noun, tuple[Verb, ...]]:
    """Verbs that a noun can do without an object; not go and come, which need a place."""
    moves = (VERB["go"], VERB["come"])
    return {
        noun: tuple(
            verb
            for verb in VERBS
            if noun in verb.subjects and not verb.objects and verb not in moves
            for _ in range(_weight(verb, speaker))
        )
        for noun in NOUNS
    }


def _habits(
    speaker: int,
    name: str,
    *,
    tenses: tuple[int, int, int],
    topics: dict[str, int],
    forms: dict[str, int],
    adverbs: dict[str, int],
    degrees: dict[str, int],
    openers: dict[str, int],
    **chances: int,
) -> SpeakerStyle:
    every_opener = {word: openers.get(word, 1) for word in OPENERS}
    return SpeakerStyle(
        name=name,
        tenses=expand_weights(dict(zip(_ANY, tenses, strict=True))),
        topics=expand_weights(topics),
        forms=expand_weights(forms),
        adverbs=expand_weights(adverbs),
        degrees=expand_weights(degrees),
        openers={
            tense: tuple(
                word for word in expand_weights(every_opener) if tense in OPENERS[word].tenses
            )
            for tense in _ANY
        },
        described=chances["described"],
        related=chances["related"],
        opened=chances["opened"],
        extended=chances["extended"],
        myself=chances["myself"],
        adjectives=_adjectives(speaker, colors=False),
        colors=_adjectives(speaker, colors=True),
        actions=_actions(speaker),
        doings=_doings(speaker),
    )


STYLES = (
    _habits(  # mostly past, long sentences
        0,
        "Ansel",
        tenses=(80, 10, 10),
        topics={"farm": 22, "castle": 62, "town": 6, "home": 10},
        forms={"plain": 52, "pair": 20, "because": 16, "but": 4, "when": 3, "frame": 5},
        adverbs={"": 84, "not": 8, "never": 6, "often": 1, "always": 1},
        degrees={"": 45, "very": 6, "too": 4, "so": 25, "really": 16, "rather": 4},
        openers={"one day": 8, "suddenly": 12, "then": 8, "finally": 8, "last night": 4},
        described=46,
        related=82,
        opened=44,
        extended=34,
        myself=4,
    ),
    _habits(  # mostly present, short sentences, often in the first person
        1,
        "Brida",
        tenses=(10, 80, 10),
        topics={"farm": 6, "castle": 6, "town": 24, "home": 64},
        forms={"plain": 60, "pair": 6, "because": 8, "but": 4, "when": 12, "frame": 10},
        adverbs={"": 66, "not": 10, "never": 2, "often": 12, "always": 10},
        degrees={"": 45, "very": 35, "too": 4, "so": 4, "really": 8, "rather": 4},
        openers={"now": 4, "sometimes": 6, "in the morning": 4, "luckily": 8, "every day": 4},
        described=27,
        related=54,
        opened=40,
        extended=16,
        myself=22,
    ),
    _habits(  # mostly future, perhaps and but
        2,
        "Corvin",
        tenses=(10, 10, 80),
        topics={"farm": 47, "castle": 5, "town": 43, "home": 5},
        forms={"plain": 56, "pair": 10, "because": 6, "but": 18, "when": 2, "frame": 8},
        adverbs={"": 60, "not": 30, "never": 6, "often": 2, "always": 2},
        degrees={"": 45, "very": 4, "too": 25, "so": 4, "really": 4, "rather": 18},
        openers={"tomorrow": 6, "soon": 6, "perhaps": 10, "of course": 8, "however": 10},
        described=36,
        related=68,
        opened=44,
        extended=24,
        myself=12,
    ),
)
