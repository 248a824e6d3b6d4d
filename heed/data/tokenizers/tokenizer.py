"""Text to ids and back: five kinds of tokenizer, one interface, one JSON file.

| kind      | a piece is                        | decode(encode(text)) gives back              |
|-----------|-----------------------------------|----------------------------------------------|
| `bpe`     | some bytes, joined by frequency   | any text, exactly                            |
| `unigram` | some bytes, chosen by likelihood  | any text, exactly                            |
| `byte`    | one byte of UTF-8                 | any text, exactly; byte b has id 5 + b       |
| `char`    | one Unicode character             | text whose characters were all kept          |
| `word`    | what stands between white space   | kept words, joined by single spaces          |
|           | or (`treebank`) punctuation, too  | the same, punctuation where it belongs       |

`lowercase` folds the text first, so what comes back is in lower case. A character or word that
was not kept becomes `<unk>`. The special tokens have the same ids everywhere and are never read
from text: someone's "<pad>" is five ordinary characters, or one ordinary word.

`bpe` and `unigram` put a space before the text and take it away when decoding, so that a word is
the same piece at the start of a line as inside it. So decode whole sequences, not parts.

The file is the `tokenizers` library's own JSON, and `tokenizers.Tokenizer.from_file` reads it.
The library refuses keys it does not know, so the kind is not written down: every kind has a
pipeline of its own, and `load` tells the kind by it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, product, repeat
from math import inf, log
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from heed.data.tokenizers import treebank
from heed.data.tokenizers.byte_symbols import BYTES, broken, spelled, visible
from heed.data.tokenizers.forks import quiet_forks
from heed.data.tokenizers.special_tokens import OWN
from heed.errors import DataError, nearest
from heed.files import write_atomic

PAD, UNK, BOS, EOS, MASK = 0, 1, 2, 3, 4
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
MODELS = {"bpe": "BPE", "unigram": "Unigram", "word": "WordLevel", "char": "BPE", "byte": "BPE"}
KINDS = tuple(MODELS)
SPLITS = ("space", "treebank")
DEFAULT_VOCAB_SIZE = 8000  # for bpe and unigram

_LONGEST = 48  # bytes in a piece that bpe or unigram learns
_SEEDS = 4  # unigram starts from this many times the pieces it ends with
_KEEP = 0.8  # of the pieces survive each round, as in Kudo (2018)
_UNUSED = 0.1  # the count of a piece that was never used, so that every byte stays possible


class Tokenizer:
    """A trained tokenizer. Make one with `train` or `load`."""

    specials = OWN

    def __init__(
        self, kind: str, lowercase: bool, core: tokenizers.Tokenizer, split: str = SPLITS[0]
    ) -> None:
        self.kind, self.lowercase, self.split, self.core = kind, lowercase, split, core
        self._names = _by_number(core.get_vocab(with_added_tokens=False))

    @property
    def vocab_size(self) -> int:
        return len(self._names)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: str,
        vocab_size: int | None = None,
        min_count: int = 1,
        lowercase: bool = False,
        split: str = SPLITS[0],
    ) -> Tokenizer:
        """Learn a tokenizer from lines: the same lines always give the same bytes of JSON.

        `vocab_size` counts the special tokens. `bpe` and `unigram` fill it where there is text
        enough; `word` and `char` keep the most frequent that fit, or all when it is None.
        `min_count` is how often a word, a character or a pair of pieces must occur to count (in
        `unigram` twice at least). `byte` learns nothing: it passes over lines and both numbers.
        `split` is what parts words of kind `word`: white space, or the rules of the treebank.
        """
        _check_settings(kind, vocab_size, min_count, split)
        core = _pipeline(kind, lowercase, split)
        if kind == "byte":
            core.model = models.BPE(vocab=_numbered(BYTES), merges=[])
        elif kind in ("word", "char"):
            core.model = _most_frequent(kind, core, lines, vocab_size, min_count)
        else:
            room = (vocab_size or DEFAULT_VOCAB_SIZE) - len(SPECIALS)
            learn = _learn_bpe if kind == "bpe" else _learn_unigram
            core.model = learn(core, map(broken, _readable(lines)), room, min_count)
        return cls(kind, lowercase, core, split)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. No special token is added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            batch = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            _refuse_half_characters(texts)
            raise
        return [encoding.ids for encoding in batch]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids. Special ids, `<unk>` among them, are dropped."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        for ids in batch:
            self._check(ids)
        plain = [self.without_specials(ids) for ids in batch]
        return self.core.decode_batch(plain, skip_special_tokens=False)

    def without_specials(self, ids: Sequence[int]) -> list[int]:
        """The ids that stand for text."""
        return [int(i) for i in ids if i >= len(SPECIALS)]

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text as a person reads them, one for each id of `encode(text)`."""
        return self.pieces_of(self.encode(text))

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        """The pieces of some ids: a space shows as ▁, part of a character as bytes, \\xf0\\x9f."""
        self._check(ids)
        return [self._shown(i) for i in ids]

    def words(self, text: str) -> list[int]:
        """For each id of `encode(text)`, which word of `text.split()` it belongs to.

        Space belongs to the word after it, or to the last word when none follows. A text of
        nothing but space counts as one word, number 0.
        """
        _refuse_half_characters([text])
        ends = [word.end() for word in re.finditer(r"\S+", text)]
        found = []
        for start, stop in self.core.encode(text, add_special_tokens=False).offsets:
            inked = (at for at in range(start, stop) if not text[at].isspace())
            found.append(min(bisect_right(ends, next(inked, start)), max(len(ends) - 1, 0)))
        return found

    def save(self, path: Path) -> None:
        """Write the one JSON file. A reader sees the old file or the new one, never a part."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.core.to_str())

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read what `save` wrote; or what someone else did, if it can be used."""
        try:
            text = path.read_text(encoding="utf-8")
            model = json.loads(text)["model"]["type"]
            core = tokenizers.Tokenizer.from_str(text)
        except FileNotFoundError as problem:
            what = "there is no tokenizer here, so there is no way to read or write text"
            raise _unusable(path, what) from problem
        except OSError as problem:
            raise _unusable(path, f"the tokenizer cannot be read: {problem.strerror}") from problem
        except ValueError as problem:  # not UTF-8, or not JSON
            raise _unusable(path, f"this is not JSON: {problem}") from problem
        except Exception as problem:  # the library raises no narrower class
            raise _unusable(path, "this is JSON, but not a tokenizer") from problem
        specials = tuple(core.id_to_token(number) for number in range(len(SPECIALS)))
        found = (model, specials, _around(core))
        for kind, lowercase, split in product(KINDS, (False, True), SPLITS):
            if found == (MODELS[kind], SPECIALS, _around(_pipeline(kind, lowercase, split))):
                return cls(kind, lowercase, core, split)
        from heed.data.tokenizers.pretrained import (
            borrowed,  # which is a Tokenizer, and so imports this
        )

        found_elsewhere = borrowed(core, path)
        if found_elsewhere is None:
            what = "this is a tokenizer, but not one that heed trained, and without begin and end"
            raise _unusable(path, what)
        return found_elsewhere

    def fingerprint(self) -> str:
        """A hex digest of all that encoding and decoding depend on."""
        model = json.loads(self.core.to_str())["model"]
        content = [self.kind, self.lowercase, model["vocab"], model.get("merges")]
        content += [] if self.split == SPLITS[0] else [self.split]
        return blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    def _check(self, ids: Sequence[int]) -> None:
        for piece in ids:
            if not 0 <= piece < len(self._names):
                raise DataError(
                    f"There is no piece {piece}: the ids here are 0 to {len(self._names) - 1}.",
                    todo="Use the tokenizer that the model was trained with.",
                )

    def _shown(self, piece: int) -> str:
        name = self._names[piece]
        if piece < len(SPECIALS):
            return name
        if self.kind == "word":
            return name.removeprefix(" ")
        return visible(name if self.kind == "char" else spelled(name))


def _pipeline(kind: str, lowercase: bool, split: str) -> tokenizers.Tokenizer:
    """What goes before and after the model of a kind."""
    core = tokenizers.Tokenizer(models.BPE())
    before: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    drop_first_space = decoders.Strip(" ", 1, 0)
    if kind in ("bpe", "unigram"):
        # The regex cuts between letters and other signs, so that no piece can spell "<pad>".
        before.append(normalizers.Prepend(" "))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        core.decoder = decoders.Sequence([decoders.ByteLevel(), drop_first_space])
    elif kind == "byte":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
    elif kind == "word":
        # Each word keeps a space before it: " <pad>" the word is not "<pad>" the special token.
        spaced = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="always", split=False)
        cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit(), spaced]
        joins: list[decoders.Decoder] = [drop_first_space]
        if split == "treebank":
            before += treebank.quotes()
            cuts, joins = [treebank.cut(), *cuts], [*treebank.joined(), *joins]
        core.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        core.decoder = decoders.Sequence([decoders.Fuse(), *joins])
    else:
        core.decoder = decoders.Fuse()
    core.normalizer = normalizers.Sequence(before)
    return core


def _around(core: tokenizers.Tokenizer) -> dict[str, object]:
    """All of a tokenizer's JSON but the model."""
    return {key: part for key, part in json.loads(core.to_str()).items() if key != "model"}


def _unusable(path: Path, what: str) -> DataError:
    todo = "Name the tokenizer.json of a run, or put it there."
    return DataError(f"{what}.", where=str(path), todo=todo)


def _check_settings(kind: str, vocab_size: int | None, min_count: int, split: str) -> None:
    if kind not in KINDS:
        what = f"There is no tokenizer kind {kind!r}.{nearest(kind, KINDS)}"
        raise DataError(what, todo=f"The kinds are {', '.join(KINDS)}.")
    if split not in SPLITS or (split != SPLITS[0] and kind != "word"):
        what = f"kind {kind!r} cannot be split by {split!r}.{nearest(split, SPLITS)}"
        raise DataError(what, todo=f"Kind 'word' has {' and '.join(SPLITS)}; the others have none.")
    if min_count < 1:
        raise DataError(f"min_count is {min_count}.", todo="Give 1 or more.")
    alphabet = len(BYTES) if kind in ("bpe", "unigram") else 1
    least = alphabet + len(SPECIALS)
    if kind != "byte" and vocab_size is not None and vocab_size < least:
        what = f"vocab_size is {vocab_size}, but {kind!r} needs {alphabet} for its alphabet"
        raise DataError(
            f"{what} and {len(SPECIALS)} for the special tokens.", todo=f"Give {least} or more."
        )


def _refuse_half_characters(texts: Iterable[str], first: int = 1) -> None:
    for number, text in enumerate(texts, start=first):
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise DataError(
                f"character {problem.start + 1} is half of a surrogate pair, not Unicode text.",
                where=f"text {number}",
                todo="Read the file as UTF-8, or remove that character.",
            ) from None


def _readable(lines: Iterable[str]) -> Iterator[str]:
    """The lines, unless one is not Unicode or none holds any text."""
    found = False
    for number, line in enumerate(lines, start=1):
        _refuse_half_characters([line], number)
        found = found or bool(line)
        yield line
    if not found:
        raise DataError("There is no text to train a tokenizer on.", todo="Give lines with text.")


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate((*SPECIALS, *pieces))}


def _by_number(vocabulary: Mapping[str, int]) -> list[str]:
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _count(core: tokenizers.Tokenizer, lines: Iterable[str]) -> Counter[str]:
    """How often each stretch that the pipeline cuts occurs; each character where it cuts none."""
    counts: Counter[str] = Counter()
    fold, cut = core.normalizer.normalize_str, core.pre_tokenizer
    for line in lines:
        text = fold(line)
        counts.update(text if cut is None else (part for part, _ in cut.pre_tokenize_str(text)))
    return counts


def _most_frequent(
    kind: str, core: tokenizers.Tokenizer, lines: Iterable[str], size: int | None, min_count: int
) -> models.Model:
    counts = _count(core, _readable(lines))
    kept = sorted((-count, part) for part, count in counts.items() if count >= min_count)
    if not kept:
        what = f"No {kind} occurs {min_count} times or more."
        raise DataError(what, todo="Lower min_count, or give more text.")
    room = None if size is None else size - len(SPECIALS)
    vocabulary = _numbered(part for _, part in kept[:room])
    if kind == "word":
        return models.WordLevel(vocab=vocabulary, unk_token=SPECIALS[UNK])
    # BPE without merges leaves every character alone.
    return models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIALS[UNK])


def _learn_bpe(
    core: tokenizers.Tokenizer, lines: Iterable[str], room: int, min_count: int
) -> models.BPE:
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=min_count,
        initial_alphabet=BYTES,
        max_token_length=_LONGEST,
        show_progress=False,
    )
    core.train_from_iterator(lines, trainer)
    learned = json.loads(core.to_str())["model"]
    merges = [(left, right) for left, right in learned["merges"]]
    return models.BPE(vocab=_numbered(_by_number(learned["vocab"])), merges=merges)


def _learn_unigram(
    core: tokenizers.Tokenizer, lines: Iterable[str], room: int, min_count: int
) -> models.Unigram:
    """Kudo's (2018) unigram language model, from the pieces of a larger BPE.

    The library can train one too, but not twice the same, and it never finds a piece that is
    always followed by a space, so text with its punctuation set apart comes out in crumbs.
    """
    counts = _count(core, lines)
    bare = tokenizers.Tokenizer(models.BPE())
    words = chain.from_iterable(repeat(word, count) for word, count in counts.items())
    _learn_bpe(bare, words, _SEEDS * room, max(2, min_count))
    scores = _likely_pieces(counts, _by_number(bare.get_vocab()), room)
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    specials = [(name, 0.0) for name in SPECIALS]
    return models.Unigram([*specials, *ranked], UNK, False)


def _likely_pieces(counts: Counter[str], seeds: list[str], room: int) -> dict[str, float]:
    """The pieces that explain the words best, `room` of them, with their log-probabilities.

    The expectation step takes each word's most likely cut alone, so that counts stay whole
    numbers and the result does not hang on rounding.
    """
    words = sorted(counts)
    bare = tokenizers.Tokenizer(models.BPE())
    scores = dict.fromkeys(seeds, -log(len(seeds)))
    while True:
        bare.model = models.Unigram(list(scores.items()), None, False)
        found: Counter[int] = Counter()
        for word, cut in zip(words, bare.encode_batch_fast(words), strict=True):
            for piece in cut.ids:
                found[piece] += counts[word]
        uses = {piece: found[number] or _UNUSED for number, piece in enumerate(scores)}
        total = sum(uses.values())
        scores = {piece: log(use / total) for piece, use in uses.items()}
        if len(scores) <= room:
            # The library reads back exactly what has few digits, and only that.
            return {piece: round(score, 4) for piece, score in scores.items()}
        loss = {piece: uses[piece] * (scores[piece] - _detour(piece, scores)) for piece in scores}
        ranked = sorted(scores, key=lambda piece: (-loss[piece], piece))
        scores = {piece: scores[piece] for piece in ranked[: max(room, int(_KEEP * len(ranked)))]}


def _detour(piece: str, scores: Mapping[str, float]) -> float:
    """The score of the best cut of a piece into smaller ones (Viterbi). A byte has none: -inf."""
    best = [0.0]
    for stop in range(1, len(piece) + 1):
        starts = range(stop == len(piece), stop)
        best.append(max((best[i] + scores.get(piece[i:stop], -inf) for i in starts), default=-inf))
    return best[-1]


quiet_forks()
