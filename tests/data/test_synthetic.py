"""The synthetic corpus: correct, unambiguous, aligned, split by combinations, and learnable."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data.synthetic import SPEAKERS, SPLITS, Sentence, generate_sentences, write_corpus
from heed.data.synthetic.lexicon import ADJECTIVES, NOUNS, VERBS
from heed.errors import DataError

Splits = dict[str, list[Sentence]]
CONTENT = {"NOUN", "VERB", "ADJ", "PROPN", "ADV", "NUM"}
TAGS = {*CONTENT, "DET", "AUX", "PRON", "PART", "ADP", "CONJ", "SCONJ"}
ELIDED = re.compile(r"^(l|d|n|j|qu)'(.+)$")


@pytest.fixture(scope="module")
def corpus() -> Splits:
    return {
        "train": list(generate_sentences("train", 60_000)),
        "dev": list(generate_sentences("dev", 700)),
        "test": list(generate_sentences("test", 700)),
    }


def words(text: str) -> list[str]:
    """The words of a text, without case and punctuation, elided ones taken apart."""
    found: list[str] = []
    for word in text.lower().split():
        word = word.rstrip(".,")
        elided = ELIDED.match(word)
        found += [f"{elided[1]}'", elided[2]] if elided else [word]
    return found


# Drawing


@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_same_sentences(split: str) -> None:
    assert list(generate_sentences(split, 60, seed=3)) == list(
        generate_sentences(split, 60, seed=3)
    )
    assert list(generate_sentences(split, 60, seed=3)) != list(
        generate_sentences(split, 60, seed=4)
    )


def test_no_hash_order_matters() -> None:
    program = (
        "from heed.data.synthetic import generate_sentences\n"
        "print([s for name in ('train', 'test') for s in generate_sentences(name, 40)])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


WHOLE = list(generate_sentences("train", 200, seed=1))


@given(start=st.integers(0, 150), count=st.integers(0, 50))
def test_a_slice_is_a_slice_of_the_whole(start: int, count: int) -> None:
    part = list(generate_sentences("train", count, seed=1, start=start))
    assert part == WHOLE[start : start + count]


def test_far_places_are_reached_at_once() -> None:
    far = 10**12
    first, second = generate_sentences("train", 2, start=far)
    assert first.document > 10**10
    assert [second] == list(generate_sentences("train", 1, start=far + 1))


def test_documents_are_whole_and_in_order(corpus: Splits) -> None:
    for lines in corpus.values():
        place = (0, 0)
        for before, line in pairwise(lines):
            place = (line.document, line.index)
            follows = (before.document, before.index + 1)
            assert place in (follows, (before.document + 1, 0))
            assert line.document != before.document or line.speaker == before.speaker
        assert place > (50, 0)


@pytest.mark.parametrize(
    ("split", "count", "start", "says"),
    [
        ("tran", 1, 0, "Did you mean 'train'"),
        ("validation", 1, 0, "no split 'validation'"),
        ("dev", -1, 0, "-1 sentences"),
        ("dev", 1, -5, "sentence -5"),
    ],
)
def test_what_cannot_be_is_said_at_once(split: str, count: int, start: int, says: str) -> None:
    with pytest.raises(DataError, match=re.escape(says)):
        generate_sentences(split, count, start=start)


# Text, alignment and tags


def test_text_is_tidy(corpus: Splits) -> None:
    for line in corpus["train"][:8_000] + corpus["test"]:
        for text in (line.english, line.french):
            assert re.fullmatch(r"[A-ZÀÉ][^.]*[^., ]\.", text)
            assert "  " not in text
            assert " ," not in text
        assert 3 <= len(line.english.split()) <= 20


def test_every_word_is_aligned_and_tagged(corpus: Splits) -> None:
    for line in corpus["train"][:8_000] + corpus["test"]:
        left, right = line.english.split(), line.french.split()
        assert len(line.english_tags) == len(left)
        assert len(line.french_tags) == len(right)
        assert {i for i, _ in line.alignment} == set(range(len(left)))
        assert {j for _, j in line.alignment} == set(range(len(right)))
        assert list(line.alignment) == sorted(set(line.alignment))
        assert {*line.english_tags} <= TAGS
        assert {part for tag in line.french_tags for part in tag.split("+")} <= TAGS


def test_content_words_meet_their_own_kind(corpus: Splits) -> None:
    """A noun goes with a noun and an adjective with an adjective, wherever French puts it."""
    for line in corpus["train"][:5_000]:
        for tag in ("NOUN", "ADJ", "PROPN"):
            for i, own in enumerate(line.english_tags):
                partners = [line.french_tags[j] for k, j in line.alignment if k == i]
                fixed = line.english.split()[i].strip(".,").lower() in {"last", "course"}
                if own == tag and not fixed:
                    assert any(tag in partner.split("+") for partner in partners), line


def test_adjectives_change_places(corpus: Splits) -> None:
    """Word order differs enough between the languages for an alignment to be worth learning."""
    crossed = sum(
        any(j > q for (i, j) in line.alignment for (p, q) in line.alignment if i < p)
        for line in corpus["train"][:2_000]
    )
    assert 0.3 < crossed / 2_000 < 0.9


# Grammar


def test_english_settles_the_french(corpus: Splits) -> None:
    said: dict[str, str] = {}
    for lines in corpus.values():
        for line in lines:
            assert said.setdefault(line.english, line.french) == line.french


WRONG_FRENCH = [
    r"\b(le|la|de|ne|je|que|ce|ma|sa) [aeiouyàâéèêîôûœh]",  # no elision
    r"\b(de|à) les? ",  # no contraction
    r"\b(un|le|du|au|ce|mon|son|chaque) (beau|nouveau|vieux) [aeiouœéh]",
    r"\bdes (petit|grand|beaux|belles|vieux|vieille|jeune|nouveaux|nouvelles|bon|joli)",
    r"\b(pas|jamais) (un|une)\b",
    r"\b(rouge|noire?|blanc|blanche|verte?|bleue?|jaune|grise?) (chat|souris|épée|manteau)\b",
    r"\b(les|ces|mes|ses|des|deux|trois|quatre) (chat|vache|fille|garçon|pomme|livre)\b",
    r"\b(la|une|cette|ma|sa) (chat|roi|livre|manteau|jardin)\b",
    r"\b(le|un|ce|mon|du|au) (vache|reine|pomme|clé|maison)\b",
    r"\b(elle|ils|elles) (suis|ai|vais)\b|\bje (est|a|va)\b|\b(ils|elles) (est|a|va)\b",
    r"\b(il est|ils sont|elles sont) (tombée|allée|venue|restée)\b(?!s)",
]
WRONG_ENGLISH = [
    r"\ba [aeiou]|\ban [^aeiou]",
    r"\b(he|she|it|Marie|Paul) (do|go|see|have|like|are|were)\b",
    r"\b(I|they) (does|goes|sees|has|likes|is)\b",
    r"\b(does|did|will|do) not \w+(ed|oes|kes)\b",
    r"\b(two|three|four|these|some|any) (small )?(man|cat|cow|mouse|wolf|story)\b",
    r"\b(a|an|each|this) (small )?(men|cats|cows|mice|wolves|stories)\b",
]


def test_no_known_mistake_in_either_language(corpus: Splits) -> None:
    lines = corpus["train"][:10_000] + corpus["dev"] + corpus["test"]
    # A line break ends a sentence, and no pattern crosses one.
    french = "\n".join(line.french for line in lines)
    english = "\n".join(line.english for line in lines)
    for pattern in WRONG_FRENCH:
        assert not re.search(pattern, french, re.IGNORECASE), pattern
    for pattern in WRONG_ENGLISH:
        assert not re.search(pattern, english, re.IGNORECASE), pattern


@pytest.mark.parametrize(
    "form",
    [
        "l'", "d'", "n'", "j'", "qu'", "du", "des", "au", "aux", "cet", "bel", "vieil", "nouvel",
        "ne", "pas", "jamais", "la", "les", "qui", "que", "était", "ont", "sera", "elles",
    ],
)  # fmt: skip
def test_the_grammar_is_all_there(corpus: Splits, form: str) -> None:
    said = re.compile(rf"\b{form}" if form.endswith("'") else rf"\b{form}\b")
    assert sum(bool(said.search(line.french)) for line in corpus["train"][:20_000]) >= 10


def test_a_negation_has_two_halves(corpus: Splits) -> None:
    for line in corpus["train"][:8_000]:
        said = words(line.french)
        assert said.count("ne") + said.count("n'") == said.count("pas") + said.count("jamais")


def find(corpus: Splits, pattern: str) -> list[Sentence]:
    return [line for line in corpus["train"][:30_000] if re.search(pattern, line.english)]


def test_participles_agree(corpus: Splits) -> None:
    for line in find(corpus, r"\bShe (went|fell|stayed|came)\b"):
        assert re.search(
            r"\bElle est (souvent |toujours )?(allée|tombée|restée|venue)\b", line.french
        )
    for line in find(corpus, r"\bShe (took|found) the (key|apple|ring) and (hid|carried) it\b"):
        assert re.search(r"\bet l'a (cachée|portée)\b", line.french)
    for line in find(corpus, r"\b(key|apple|ring|crown) that (he|she|Paul|Marie) (took|hid)\b"):
        assert re.search(r"\bqu(e|'il|'elle)\b.* a (prise|cachée)\b", line.french)
    assert find(corpus, r"\bShe went\b")
    assert find(corpus, r"\b(key|apple|ring|crown) that (he|she|Paul|Marie) (took|hid)\b")


def test_a_negation_turns_a_into_de(corpus: Splits) -> None:
    negated = find(corpus, r"\b(not|never) (eat|want|buy|have|take) an? ")
    assert len(negated) > 50
    assert all(re.search(r"\b(pas|jamais)\b.* (de |d')", line.french) for line in negated)


# Splits


Combination = tuple[str, str, str]
LEMMAS = {
    **{form: ("N", n.english) for n in NOUNS for form in (n.english, n.english_plural)},
    **{form: ("V", v.english) for v in VERBS for form in (v.english, v.third, v.past)},
    **{adjective.english: ("A", adjective.english) for adjective in ADJECTIVES},
}
BE = {"am", "is", "are", "was", "were", "be"}


def combinations(line: Sentence) -> set[Combination]:
    """Read the combinations back from the English text and tags, knowing nothing of the corpus's
    own bookkeeping: a small parser with a stack of one for the relative clause."""
    found: set[Combination] = set()
    described: list[str] = []
    subject = verb = noun = gap = outer = ""
    prepositional = inner = False
    tagged = [
        (word.rstrip(".,"), tag, word.endswith(","))
        for word, tag in zip(line.english.lower().split(), line.english_tags, strict=True)
    ]
    for place, (word, tag, comma) in enumerate(tagged):
        after = tagged[place + 1][1] if place + 1 < len(tagged) else ""
        if tag in {"SCONJ", "CONJ"}:
            subject = verb = outer = gap = ""
            inner = False
        elif tag == "ADP":
            prepositional = word != "for" or verb != "look" or tagged[place - 1][1] != "VERB"
        elif tag == "ADJ" and verb == "be" and after != "NOUN" and word in LEMMAS:
            found |= {("is", word, subject)} if subject else set()
        elif tag == "ADJ":
            described.append(word)
        elif tag == "NOUN" and word in LEMMAS:
            lemma = LEMMAS[word][1]
            found |= {("is", adjective, lemma) for adjective in described}
            described = []
            if not prepositional:
                noun = lemma
                found |= {("object", verb, noun)} if verb and verb != "be" else set()
                subject = subject if verb else noun
            prepositional = False
        elif tag == "PROPN" or (tag == "PRON" and word in {"i", "he", "she", "it", "they"}):
            subject, prepositional = subject if verb else "", False
        elif tag == "PRON" and word in {"who", "that"}:
            outer, inner = ("" if verb else subject), True
            follows = word == "who" or after in {"VERB", "AUX", "ADV"}
            subject, gap, verb = (noun, "", "") if follows else ("", noun, "")
        elif tag == "VERB" or word in BE:
            if verb and inner:
                subject, gap, inner = outer, "", False
            verb = "be" if word in BE else LEMMAS.get(word, ("", ""))[1]
            if verb not in {"", "be"}:
                found |= {("subject", verb, subject)} if subject else set()
                found |= {("object", verb, gap)} if gap else set()
        if comma:
            subject = verb = outer = gap = ""
            described, prepositional = [], False
    return found


def test_the_reader_of_combinations_reads() -> None:
    """The parser above, on sentences whose combinations are plain to see."""
    known = {line.english: line for line in generate_sentences("train", 4_000, seed=9)}
    seen = set().union(*(combinations(line) for line in known.values()))
    kinds = Counter(kind for kind, _, _ in seen)
    assert min(kinds["is"], kinds["object"], kinds["subject"]) > 100
    adjectives = {(a.english, n.english) for a in ADJECTIVES for n in a.nouns}
    objects = {(v.english, n.english) for v in VERBS for n in v.objects}
    subjects = {(v.english, n.english) for v in VERBS for n in v.subjects}
    allowed = {"is": adjectives, "object": objects, "subject": subjects}
    assert all(pair in allowed[kind] for kind, *rest in seen for pair in [tuple(rest)])


def test_each_test_sentence_has_a_combination_never_seen_in_training(corpus: Splits) -> None:
    trained: set[Combination] = set()
    for lines in (corpus["train"], generate_sentences("train", 5_000, seed=77)):
        for line in lines:
            trained |= combinations(line)
    for split in ("dev", "test"):
        for line in corpus[split]:
            assert combinations(line) - trained, line.english


def test_no_sentence_is_in_two_splits(corpus: Splits) -> None:
    for side in ("english", "french"):
        texts = {split: {getattr(line, side) for line in corpus[split]} for split in SPLITS}
        assert not texts["train"] & texts["dev"]
        assert not texts["train"] & texts["test"]
        assert not texts["dev"] & texts["test"]


def test_every_word_of_test_was_seen_often_enough(corpus: Splits) -> None:
    for side in ("english", "french"):
        counts = Counter(
            word for line in corpus["train"][:20_000] for word in words(getattr(line, side))
        )
        assert 300 < len(counts) < 620
        assert sum(count < 10 for count in counts.values()) < 0.02 * len(counts)
        for split in ("dev", "test"):
            for line in corpus[split]:
                assert not set(words(getattr(line, side))) - set(counts)


def test_lengths_and_relative_clauses(corpus: Splits) -> None:
    lines = corpus["train"][:20_000]
    assert 8 <= sum(len(line.english.split()) for line in lines) / len(lines) <= 9.5
    related = sum(
        any(
            word in {"who", "that"} and tag == "PRON"
            for word, tag in zip(line.english.split(), line.english_tags, strict=True)
        )
        for line in lines
    )
    assert 0.2 <= related / len(lines) <= 0.3


# Speakers and order


def naive_bayes(train: Sequence[Sentence], test: Sequence[Sentence]) -> float:
    """The accuracy of a multinomial naive Bayes classifier of speakers, smoothed by one."""
    counts: dict[str, Counter[str]] = {speaker: Counter() for speaker in SPEAKERS}
    for line in train:
        counts[line.speaker].update(words(line.english))
    known = set().union(*counts.values())
    weights = {
        speaker: {word: math.log((seen[word] + 1) / (seen.total() + len(known))) for word in known}
        for speaker, seen in counts.items()
    }
    right = 0
    for line in test:
        said = [word for word in words(line.english) if word in known]
        score = {name: sum(weight[word] for word in said) for name, weight in weights.items()}
        right += max(SPEAKERS, key=score.__getitem__) == line.speaker
    return right / len(test)


def test_speakers_can_be_classified_but_not_by_one_word(corpus: Splits) -> None:
    train, held_out = corpus["train"][:20_000], corpus["dev"] + corpus["test"]
    assert 0.7 < naive_bayes(train, held_out) < 0.99
    shares = Counter(line.speaker for line in train)
    assert all(0.28 < shares[speaker] / len(train) < 0.39 for speaker in SPEAKERS)
    with_word: dict[str, Counter[str]] = defaultdict(Counter)
    for line in train:
        for word in set(words(line.english)):
            with_word[word][line.speaker] += 1
    for speakers in with_word.values():  # guess one speaker if the word is there, else another
        right = max(speakers.values()) + max((shares - speakers).values())
        assert right / len(train) < 0.65


def test_order_matters(corpus: Splits) -> None:
    """A noun comes back within its story far more often than in the story that follows it."""
    stories: dict[int, list[set[str]]] = defaultdict(list)
    for line in corpus["train"][:8_000]:
        stories[line.document].append(
            {
                LEMMAS[word][1]
                for word in words(line.english)
                if LEMMAS.get(word, ("", ""))[0] == "N"
            }
        )
    same = other = total = 0
    for number in range(len(stories) - 1):
        first, second = stories[number][0], stories[number][1]
        elsewhere = stories[number + 1][1]
        total += len(first)
        same += len(first & second)
        other += len(first & elsewhere)
    assert same > 3 * other
    assert same > 0.1 * total


# Files


def test_write(tmp_path: Path) -> None:
    paths = write_corpus(tmp_path / "new" / "folder", train=50, dev=12, test=7, seed=5)
    endings = ("en", "fr", "align", "tsv", "txt")
    assert set(paths) == {f"{split}.{ending}" for split in SPLITS for ending in endings}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == set(paths)
    for split, count in (("train", 50), ("dev", 12), ("test", 7)):
        lines = list(generate_sentences(split, count, seed=5))
        read = {end: paths[f"{split}.{end}"].read_text("utf-8").split("\n") for end in endings}
        assert read["en"] == [*(line.english for line in lines), ""]
        assert read["fr"] == [*(line.french for line in lines), ""]
        assert read["tsv"] == [*(f"{line.speaker}\t{line.english}" for line in lines), ""]
        for text, line in zip(read["align"], lines, strict=False):
            links = [tuple(map(int, link.split("-"))) for link in text.split()]
            assert tuple(links) == line.alignment
        documents = "\n".join(read["txt"]).rstrip("\n").split("\n\n")
        assert len(documents) == len({line.document for line in lines})
        assert "\n".join(documents).replace("\n\n", "\n").split("\n") == read["en"][:-1]


def test_write_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_corpus(tmp_path, train=20, dev=5, test=5)
    before = {name: path.read_bytes() for name, path in first.items()}
    again = write_corpus(tmp_path, train=20, dev=5, test=5)
    assert before == {name: path.read_bytes() for name, path in again.items()}


def test_write_says_what_it_cannot(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="-3 sentences"):
        write_corpus(tmp_path / "nothing", train=5, dev=5, test=-3)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="folder"):
        write_corpus(tmp_path / "file", train=1, dev=1, test=1)


def test_processes_may_write_the_same_corpus_at_once(tmp_path: Path) -> None:
    def all_files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def written(_: int) -> dict[str, Path]:
        return write_corpus(tmp_path, train=200, dev=20, test=20)

    written(0)
    expected = all_files()
    with ThreadPoolExecutor(4) as pool:
        for paths in pool.map(written, range(8)):
            assert {name: path.read_bytes() for name, path in paths.items()} == expected
    assert all_files() == expected
