"""French morphology and spelling: inflection, elision and contraction.

Regular forms come from rules, irregular ones from the tables below. All elision (le + arbre =
l'arbre) and contraction (de + le = du) happens in `elide_and_contract`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A French word before elision: the word, its part of speech, and the indices of the English words
# it is aligned with.
FrenchWord = tuple[str, str, tuple[int, ...]]

VOWELS = frozenset("aeiouyàâéèêëîïôûœh")  # every h in the lexicon is mute: l'homme, l'hôtel
ELIDED = {"le": "l'", "la": "l'", "je": "j'", "ne": "n'", "de": "d'", "que": "qu'"}
CONTRACTED = {
    ("de", "le"): "du",
    ("de", "les"): "des",
    ("à", "le"): "au",
    ("à", "les"): "aux",
}

FEMININES = {
    "beau": "belle",
    "nouveau": "nouvelle",
    "vieux": "vieille",
    "blanc": "blanche",
    "bon": "bonne",
    "gentil": "gentille",
}
BEFORE_VOWEL = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}
PLURALS = {"grand-père": "grands-pères", "grand-mère": "grands-mères", "bleu": "bleus"}

# infinitive: je, il, ils in the present; stem of the future; stem of the imperfect; participle
IRREGULAR = {
    "acheter": "achète achète achètent achèter achet acheté",
    "aller": "vais va vont ir all allé",
    "avoir": "ai a ont aur av eu",
    "courir": "cours court courent courr cour couru",
    "dormir": "dors dort dorment dormir dorm dormi",
    "être": "suis est sont ser ét été",
    "lire": "lis lit lisent lir lis lu",
    "prendre": "prends prend prennent prendr pren pris",
    "rire": "ris rit rient rir ri ri",
    "suivre": "suis suit suivent suivr suiv suivi",
    "venir": "viens vient viennent viendr ven venu",
    "voir": "vois voit voient verr voy vu",
    "vouloir": "veux veut veulent voudr voul voulu",
}


def starts_with_vowel(word: str) -> bool:
    """Whether the word before this one elides."""
    return word[0] in VOWELS


def plural(word: str) -> str:
    """The plural of a noun or of an adjective: chats, gâteaux, chevaux, souris."""
    if word in PLURALS:
        return PLURALS[word]
    if word[-1] in "sxz":
        return word
    if word.endswith("eau"):
        return word + "x"
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + "s"


def feminine(word: str) -> str:
    """The feminine of an adjective or of a participle: petite, heureuse, rouge, belle."""
    if word in FEMININES:
        return FEMININES[word]
    if word.endswith("e"):
        return word
    if word.endswith("eux"):
        return word[:-1] + "se"
    return word + "e"


def agree(word: str, is_feminine: bool, is_plural: bool) -> str:
    """An adjective or participle in the gender and number of its noun."""
    word = feminine(word) if is_feminine else word
    return plural(word) if is_plural else word


@dataclass(frozen=True, slots=True, eq=False)
class Conjugation:
    """The forms of a verb that the corpus uses: je, il and ils, in that order, by tense."""

    present: tuple[str, str, str]
    future: tuple[str, str, str]
    imperfect: tuple[str, str, str]
    participle: str


def conjugate(infinitive: str) -> Conjugation:
    """Forms of a verb: from the table, or by the rule for verbs in -er."""
    if infinitive in IRREGULAR:
        je, il, ils, future, imperfect, participle = IRREGULAR[infinitive].split()
    else:
        stem = infinitive.removesuffix("er")
        soft = stem + "e" if stem.endswith("g") else stem  # mangeait keeps its soft g
        je, il, ils, future, imperfect = stem + "e", stem + "e", stem + "ent", infinitive, soft
        participle = stem + "é"
    return Conjugation(
        present=(je, il, ils),
        future=(future + "ai", future + "a", future + "ont"),
        imperfect=(imperfect + "ais", imperfect + "ait", imperfect + "aient"),
        participle=participle,
    )


def elide_and_contract(french_words: Sequence[FrenchWord]) -> list[FrenchWord]:
    """Apply elision and contraction; tags of merged words are joined by a plus."""
    output: list[FrenchWord] = []
    place, last = 0, len(french_words) - 1
    while place <= last:
        word, tag, sources = french_words[place]
        place += 1
        if place <= last:
            after, after_tag, after_sources = french_words[place]
            if word in ELIDED and after[0] in VOWELS:
                word = ELIDED[word] + after
            elif (word, after) in CONTRACTED and not _elides(french_words, place):
                word = CONTRACTED[word, after]
            else:
                output.append((word, tag, sources))
                continue
            place += 1
            tag, sources = f"{tag}+{after_tag}", sources + after_sources
        output.append((word, tag, sources))
    return output


def _elides(french_words: Sequence[FrenchWord], place: int) -> bool:
    """Whether the word at `place` elides before its neighbor: de + l'homme does not contract."""
    return (
        place + 1 < len(french_words)
        and french_words[place][0] in ELIDED
        and starts_with_vowel(french_words[place + 1][0])
    )
