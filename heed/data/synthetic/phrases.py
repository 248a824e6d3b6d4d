"""Bilingual phrases, each French word aligned with the English words it translates.

A `Phrase` is English and French that hold the same place in the sentence. All reordering
(adjectives, negation, object pronouns) happens inside one phrase. So a sentence is a sequence of
phrases, and its word alignment follows by counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from heed.data.synthetic.french import (
    BEFORE_VOWEL,
    FrenchWord,
    agree,
    conjugate,
    elide_and_contract,
    plural,
    starts_with_vowel,
)
from heed.data.synthetic.lexicon import AT, Adjective, Noun, Verb

# Phrases are few and used often; the bound keeps memory constant however much is generated.
CACHED = 1 << 15


class Phrase(NamedTuple):
    """English words and tags, and the French words that translate them."""

    english: tuple[str, ...]
    tags: tuple[str, ...]
    french: tuple[FrenchWord, ...]


class Agreement(NamedTuple):
    """What a verb, pronoun or participle agrees with."""

    feminine: bool
    plural: bool
    first_person: bool = False


class Determiner(NamedTuple):
    """A determiner in English (singular, plural) and French.

    French has masculine and feminine, both again before a vowel, and plural.
    """

    english: tuple[str, str]
    french: tuple[str, ...]
    tag: str = "DET"


I_MYSELF = Agreement(False, False, True)
COMMA = Phrase((), (), ())
PAST, PRESENT, FUTURE = "past", "present", "future"

DETERMINERS = {
    "the": Determiner(("the", "the"), ("le", "la", "le", "la", "les")),
    "a": Determiner(("a", "some"), ("un", "une", "un", "une", "des")),
    "no": Determiner(("a", "any"), ("de",) * 5),  # after a negation: pas de chat
    "this": Determiner(("this", "these"), ("ce", "cette", "cet", "cette", "ces")),
    "my": Determiner(("my", "my"), ("mon", "ma", "mon", "mon", "mes")),
    "his": Determiner(("his", "his"), ("son", "sa", "son", "son", "ses")),
    "her": Determiner(("her", "her"), ("son", "sa", "son", "son", "ses")),
    "each": Determiner(("each", "each"), ("chaque",) * 5),
    "two": Determiner(("two", "two"), ("deux",) * 5, "NUM"),
    "three": Determiner(("three", "three"), ("trois",) * 5, "NUM"),
    "four": Determiner(("four", "four"), ("quatre",) * 5, "NUM"),
}
ADVERBS = {"not": "pas", "never": "jamais", "often": "souvent", "always": "toujours"}
NEGATIVE = frozenset({"not", "never"})
AVOIR, ETRE = conjugate("avoir"), conjugate("être")


def parse_phrase(english: str, french: str, links: str) -> Phrase:
    """A fixed phrase from "word/TAG word/TAG" on both sides and links such as "0-0 0-1"."""
    left = [word.split("/") for word in english.split()]
    right = [word.split("/") for word in french.split()]
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    french_words = tuple(
        (word, tag, tuple(i for i, j in pairs if j == place))
        for place, (word, tag) in enumerate(right)
    )
    return Phrase(tuple(word for word, _ in left), tuple(tag for _, tag in left), french_words)


SUBJECT_PRONOUNS = {
    ("I", False): parse_phrase("I/PRON", "je/PRON", "0-0"),
    ("he", False): parse_phrase("he/PRON", "il/PRON", "0-0"),
    ("she", True): parse_phrase("she/PRON", "elle/PRON", "0-0"),
    ("it", False): parse_phrase("it/PRON", "il/PRON", "0-0"),
    ("it", True): parse_phrase("it/PRON", "elle/PRON", "0-0"),
    ("they", False): parse_phrase("they/PRON", "ils/PRON", "0-0"),
    ("they", True): parse_phrase("they/PRON", "elles/PRON", "0-0"),
}
WHO = parse_phrase("who/PRON", "qui/PRON", "0-0")
THAT_DOES = parse_phrase("that/PRON", "qui/PRON", "0-0")
THAT_IS_DONE = parse_phrase("that/PRON", "que/PRON", "0-0")


@lru_cache(maxsize=CACHED)
def noun_phrase(name: str, adjectives: tuple[Adjective, ...], noun: Noun, many: bool) -> Phrase:
    """A determiner, up to two adjectives in English order, and their noun."""
    determiner = DETERMINERS[name]
    words = [adjective.english for adjective in adjectives]
    words.append(noun.english_plural if many else noun.english)
    article = determiner.english[many]
    if article == "a" and words[0][0] in "aeiou":
        article = "an"
    french_noun = plural(noun.french) if many else noun.french
    before: list[FrenchWord] = []
    after: list[FrenchWord] = []
    for place, adjective in enumerate(adjectives, start=1):
        form = agree(adjective.french, noun.feminine, many)
        if adjective.before and not many and not noun.feminine and starts_with_vowel(french_noun):
            form = BEFORE_VOWEL.get(form, form)
        (before if adjective.before else after).append((form, "ADJ", (place,)))
    french = [*before, (french_noun, "NOUN", (len(words),)), *after]
    form_number = 4 if many else 2 * starts_with_vowel(french[0][0]) + noun.feminine
    opening = determiner.french[form_number]
    if opening == "des" and before:
        opening = "de"  # des chats, but de petits chats
    tags = (determiner.tag, *["ADJ"] * len(adjectives), "NOUN")
    return Phrase((article, *words), tags, ((opening, determiner.tag, (0,)), *french))


@cache
def name_phrase(name: str) -> Phrase:
    """A first name, the same in both languages."""
    return parse_phrase(f"{name}/PROPN", f"{name}/PROPN", "0-0")


PREPOSITIONS = {
    "in": parse_phrase("in/ADP", "dans/ADP", "0-0"),
    "at": parse_phrase("at/ADP", "à/ADP", "0-0"),
    "to": parse_phrase("to/ADP", "à/ADP", "0-0"),
    "near": parse_phrase("near/ADP", "près/ADV de/ADP", "0-0 0-1"),
    "behind": parse_phrase("behind/ADP", "derrière/ADP", "0-0"),
    "from": parse_phrase("from/ADP", "de/ADP", "0-0"),
    "of": parse_phrase("of/ADP", "de/ADP", "0-0"),
    "for": parse_phrase("for/ADP", "pour/ADP", "0-0"),
    "with": parse_phrase("with/ADP", "avec/ADP", "0-0"),
}


def place_preposition(place: Noun) -> Phrase:
    """The preposition for being at a place: in the castle, at the station."""
    return PREPOSITIONS["at" if place in AT else "in"]


def _person(subject: Agreement) -> int:
    return 0 if subject.first_person else 2 if subject.plural else 1


def _english_verb(verb: Verb, tense: str, subject: Agreement, adverb: str) -> list[str]:
    """The auxiliary (or nothing), the adverb (or nothing) and the verb."""
    third = _person(subject) == 1
    if tense == FUTURE:
        return ["will", adverb, verb.english]
    if adverb == "not":
        return [
            "did" if tense == PAST else "does" if third else "do",
            adverb,
            verb.english,
        ]
    return ["", adverb, verb.past if tense == PAST else verb.third if third else verb.english]


@lru_cache(maxsize=CACHED)
def verb_group(
    verb: Verb,
    tense: str,
    subject: Agreement,
    adverb: str = "",
    pronoun: str = "",
    moved: Agreement | None = None,
) -> Phrase:
    """A verb with its adverb and its object pronoun.

    `moved` is an object before the French verb, as a pronoun or as a relative que: the participle
    after avoir agrees with it. After être it agrees with the subject.
    """
    helper, _, base = _english_verb(verb, tense, subject, adverb)
    tagged = [(helper, "AUX"), (adverb, "PART" if adverb == "not" else "ADV"), (base, "VERB")]
    tagged += [(verb.particle, "ADP"), (pronoun, "PRON")]
    english_index: list[tuple[int, ...]] = []
    for word, _ in tagged:
        count = sum(1 for places in english_index if places)
        english_index.append((count,) if word else ())
    english = [(word, tag) for word, tag in tagged if word]

    meaning = english_index[2] + english_index[3]
    person = _person(subject)
    french_words: list[FrenchWord] = []
    if adverb in NEGATIVE:
        french_words.append(("ne", "PART", english_index[1]))
    if pronoun and moved:
        clitic = "les" if moved.plural else "la" if moved.feminine else "le"
        french_words.append((clitic, "PRON", english_index[4]))
    french_adverb: FrenchWord | None = (
        (ADVERBS[adverb], tagged[1][1], english_index[1]) if adverb else None
    )
    if tense == PAST and not verb.state:
        auxiliary = ETRE if verb.etre else AVOIR
        agrees = subject if verb.etre else moved or Agreement(False, False)
        participle = agree(verb.french.participle, agrees.feminine, agrees.plural)
        french_words.append((auxiliary.present[person], "AUX", english_index[0] or meaning))
        french_words += [french_adverb] if french_adverb else []
        french_words.append((participle, "VERB", meaning))
    else:
        forms = verb.french
        by_tense = {PAST: forms.imperfect, PRESENT: forms.present, FUTURE: forms.future}
        french_words.append((by_tense[tense][person], "VERB", english_index[0] + meaning))
        french_words += [french_adverb] if french_adverb else []
    return Phrase(tuple(w for w, _ in english), tuple(t for _, t in english), tuple(french_words))


TO_BE = {PAST: ("was", "was", "were"), PRESENT: ("am", "is", "are"), FUTURE: ("will",) * 3}


@cache
def to_be(tense: str, subject: Agreement, adverb: str = "") -> Phrase:
    """The verb be: être, whose past is the imperfect."""
    person = _person(subject)
    by_tense = {PAST: ETRE.imperfect, PRESENT: ETRE.present, FUTURE: ETRE.future}
    english = [(TO_BE[tense][person], "AUX")]
    english += [(adverb, "PART" if adverb == "not" else "ADV")] if adverb else []
    english += [("be", "AUX")] if tense == FUTURE else []
    being = (0, len(english) - 1) if tense == FUTURE else (0,)
    french_words: list[FrenchWord] = [("ne", "PART", (1,))] if adverb in NEGATIVE else []
    french_words.append((by_tense[tense][person], "AUX", being))
    french_words += [(ADVERBS[adverb], english[1][1], (1,))] if adverb else []
    return Phrase(tuple(w for w, _ in english), tuple(t for _, t in english), tuple(french_words))


@lru_cache(maxsize=CACHED)
def predicate_adjective(adjective: Adjective, subject: Agreement, degree: Phrase | None) -> Phrase:
    """An adjective after be that agrees with the subject: very tired, très fatiguées."""
    form = agree(adjective.french, subject.feminine, subject.plural)
    if degree is None:
        return Phrase((adjective.english,), ("ADJ",), ((form, "ADJ", (0,)),))
    english = (*degree.english, adjective.english)
    return Phrase(english, ("ADV", "ADJ"), (*degree.french, (form, "ADJ", (1,))))


class RenderedSentence(NamedTuple):
    """A finished sentence with its alignment and tags."""

    english: str
    french: str
    alignment: tuple[tuple[int, int], ...]
    english_tags: tuple[str, ...]
    french_tags: tuple[str, ...]


def render_sentence(phrases: Sequence[Phrase]) -> RenderedSentence:
    """Phrases as text: elided and contracted, capitalized, with a full stop."""
    english: list[str] = []
    tags: list[str] = []
    french_words: list[FrenchWord] = []
    for phrase in phrases:
        if phrase is COMMA:
            english[-1] += ","
            word, tag, places = french_words[-1]
            french_words[-1] = (word + ",", tag, places)
            continue
        base = len(english)
        english.extend(phrase.english)
        tags.extend(phrase.tags)
        for word, tag, places in phrase.french:
            french_words.append((word, tag, tuple([base + place for place in places])))
    words = elide_and_contract(french_words)
    links = {(i, j) for j, (_, _, places) in enumerate(words) for i in places}
    left, right = " ".join(english), " ".join([word for word, _, _ in words])
    return RenderedSentence(
        f"{left[0].upper()}{left[1:]}.",
        f"{right[0].upper()}{right[1:]}.",
        tuple(sorted(links)),
        tuple(tags),
        tuple([tag for _, tag, _ in words]),
    )
