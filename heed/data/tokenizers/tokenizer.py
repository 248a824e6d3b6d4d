"""Tokenizers: text to ids and back; five kinds, one interface, one JSON file.

| kind      | a token is                        | decode(encode(text)) gives back              |
|-----------|-----------------------------------|----------------------------------------------|
| `bpe`     | some bytes, merged by frequency   | any text, exactly                            |
| `unigram` | some bytes, chosen by likelihood  | any text, exactly                            |
| `byte`    | one byte of UTF-8                 | any text, exactly; byte b has id 5 + b       |
| `char`    | one Unicode character             | text whose characters are all in the vocabulary |
| `word`    | a word between white space        | known words, joined by single spaces         |
|           | or punctuation (`treebank`)       | as above, spaces around punctuation restored |

`lowercase` folds the text first, so decoded text is in lower case. A character or word that is not
in the vocabulary becomes `<unk>`. The special tokens have the same ids in every tokenizer and are
never read from text: a "<pad>" in the text is five ordinary characters, or one ordinary word.

`bpe` and `unigram` put a space before the text and remove it when decoding, so a word is the same
token at the start of a line and inside it. So decode whole sequences, not parts.

The file is the `tokenizers` library's own JSON, and `tokenizers.Tokenizer.from_file` reads it. The
library refuses unknown keys, so the kind is not stored. Every kind has its own pipeline, by which
`load` recognizes it.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import product
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from heed.data.tokenizers.byte_symbols import BYTE_SYMBOLS, decode_symbols, show_whitespace
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SPECIAL_TOKEN_NAMES
from heed.data.tokenizers.vocabulary import (
    break_long_words,
    check_lines,
    keep_most_frequent,
    learn_bpe,
    learn_unigram,
    number_tokens,
    refuse_surrogates,
    sort_by_id,
)
from heed.errors import DataError, nearest
from heed.files import read_regular, write_atomic

MODELS = {"bpe": "BPE", "unigram": "Unigram", "word": "WordLevel", "char": "BPE", "byte": "BPE"}
KINDS = tuple(MODELS)
SPLITS = ("space", "treebank")
DEFAULT_VOCAB_SIZE = 8000  # for bpe and unigram


class Tokenizer:
    """A tokenizer trained here; create one with `train` or `load`."""

    specials = DEFAULT_SPECIALS

    def __init__(
        self, kind: str, lowercase: bool, core: tokenizers.Tokenizer, split: str = SPLITS[0]
    ) -> None:
        self.kind, self.lowercase, self.split, self.core = kind, lowercase, split, core
        if getattr(core.model, "dropout", None) is not None:
            core.model.dropout = None  # or the same text would have other ids at every call
        self._tokens = sort_by_id(core.get_vocab(with_added_tokens=False))

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

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
        """Train a tokenizer on lines: the same lines always give the same bytes of JSON.

        `vocab_size` counts the special tokens. `bpe` and `unigram` fill it if there is enough text;
        `word` and `char` keep the most frequent that fit, or all when it is None. `min_count` is
        how often a word, a character or a pair of subwords must occur to count (in `unigram` at
        least twice). `byte` learns nothing and ignores lines and both numbers. `split` is how kind
        `word` finds words: at white space, or by the Penn Treebank's rules.
        """
        _check_settings(kind, vocab_size, min_count, split)
        core = _build_pipeline(kind, lowercase, split)
        if kind == "byte":
            core.model = models.BPE(vocab=number_tokens(BYTE_SYMBOLS), merges=[])
        elif kind in ("word", "char"):
            core.model = keep_most_frequent(kind, core, lines, vocab_size, min_count)
        else:
            room = (vocab_size or DEFAULT_VOCAB_SIZE) - len(SPECIAL_TOKEN_NAMES)
            learn = learn_bpe if kind == "bpe" else learn_unigram
            core.model = learn(core, map(break_long_words, check_lines(lines)), room, min_count)
        return cls(kind, lowercase, core, split)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            batch = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            refuse_surrogates(texts)
            raise
        except BaseException as problem:
            if is_panic(problem):
                raise DataError(
                    f"the tokenizers library failed on a text: {problem}",
                    todo="Use another tokenizer, or leave the text out.",
                ) from None
            raise
        return [encoding.ids for encoding in batch]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of some ids. Special tokens, `<unk>` included, are dropped."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        for ids in batch:
            self._check(ids)
        plain = [self.strip_special_tokens(ids) for ids in batch]
        return self.core.decode_batch(plain, skip_special_tokens=False)

    def strip_special_tokens(self, ids: Sequence[int]) -> list[int]:
        """The ids without special tokens."""
        return [int(i) for i in ids if i >= len(SPECIAL_TOKEN_NAMES)]

    def tokenize(self, text: str) -> list[str]:
        """Tokens of a text in readable form, one for each id of `encode(text)`."""
        return self.ids_to_tokens(self.encode(text))

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens of some ids in readable form.

        A space is shown as ▁, part of a character as bytes, \\xf0\\x9f.
        """
        self._check(ids)
        return [self._display(i) for i in ids]

    def word_indices(self, text: str) -> list[int]:
        """For each id of `encode(text)`, the index of its word in `text.split()`.

        A space belongs to the word after it, or to the last word when none follows. A text of
        nothing but spaces counts as one word, number 0.
        """
        refuse_surrogates([text])
        ends = [word.end() for word in re.finditer(r"\S+", text)]
        indices = []
        for start, stop in self.core.encode(text, add_special_tokens=False).offsets:
            visible = (i for i in range(start, stop) if not text[i].isspace())
            indices.append(min(bisect_right(ends, next(visible, start)), max(len(ends) - 1, 0)))
        return indices

    def save(self, path: Path) -> None:
        """Write the JSON file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.core.to_str())

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Load a tokenizer that `save` wrote, or a pretrained one with known BOS and EOS."""
        try:
            return cls.parse(read_regular(path).decode(), path)
        except FileNotFoundError as problem:
            what = "there is no tokenizer file, so text cannot be encoded or decoded"
            raise _load_error(path, what) from problem
        except OSError as problem:
            raise _load_error(
                path, f"the tokenizer cannot be read: {problem.strerror}"
            ) from problem
        except UnicodeDecodeError as problem:
            raise _load_error(path, f"this is not JSON: {problem}") from problem

    @classmethod
    def parse(cls, text: str, path: Path) -> Tokenizer:
        """The tokenizer of the text of a JSON file; `path` is where it was read."""
        try:
            model = json.loads(text)["model"]["type"]
            core = tokenizers.Tokenizer.from_str(text)
        except ValueError as problem:
            raise _load_error(path, f"this is not JSON: {problem}") from problem
        except BaseException as problem:
            if not isinstance(problem, Exception) and not is_panic(problem):
                raise
            raise _load_error(path, "this is JSON, but not a tokenizer") from problem
        specials = tuple(core.id_to_token(number) for number in range(len(SPECIAL_TOKEN_NAMES)))
        signature = (model, specials, _without_model(core))
        for kind, lowercase, split in product(KINDS, (False, True), SPLITS):
            if signature == (
                MODELS[kind],
                SPECIAL_TOKEN_NAMES,
                _without_model(_build_pipeline(kind, lowercase, split)),
            ):
                return cls(kind, lowercase, core, split)
        # Imported here, since a PretrainedTokenizer is a Tokenizer.
        from heed.data.tokenizers.pretrained import wrap_pretrained

        pretrained = wrap_pretrained(core, path)
        if pretrained is None:
            what = "this tokenizer was not trained by heed, and its BOS and EOS are unknown"
            raise _load_error(path, what)
        return pretrained

    def fingerprint(self) -> str:
        """Hash of everything that encoding and decoding depend on."""
        model = json.loads(self.core.to_str())["model"]
        content = [self.kind, self.lowercase, model["vocab"], model.get("merges")]
        content += [] if self.split == SPLITS[0] else [self.split]
        return blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    def _check(self, ids: Sequence[int]) -> None:
        for token in ids:
            if not 0 <= token < len(self._tokens):
                raise DataError(
                    f"There is no token {token}: the ids here are 0 to {len(self._tokens) - 1}.",
                    todo="Use the tokenizer that the model was trained with.",
                )

    def _display(self, token: int) -> str:
        name = self._tokens[token]
        if token < len(SPECIAL_TOKEN_NAMES):
            return name
        if self.kind == "word":
            return name.removeprefix(" ")
        return show_whitespace(name if self.kind == "char" else decode_symbols(name))


def is_panic(problem: BaseException) -> bool:
    """Whether an exception is a panic of a library in Rust, which is no `Exception` in Python."""
    return type(problem).__name__ == "PanicException"


def _build_pipeline(kind: str, lowercase: bool, split: str) -> tokenizers.Tokenizer:
    """Normalizer, pre-tokenizer and decoder of a kind, without its model."""
    core = tokenizers.Tokenizer(models.BPE())
    before: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    drop_first_space = decoders.Strip(" ", 1, 0)
    if kind in ("bpe", "unigram"):
        # The regex splits between letters and punctuation, so no subword can spell "<pad>".
        before.append(normalizers.Prepend(" "))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        core.decoder = decoders.Sequence([decoders.ByteLevel(), drop_first_space])
    elif kind == "byte":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
    elif kind == "word":
        # Each word keeps a space before it: " <pad>" the word is not "<pad>" the special token.
        spaced = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="always", split=False)
        pre: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit(), spaced]
        post: list[decoders.Decoder] = [drop_first_space]
        if split == "treebank":
            from heed.data.tokenizers import treebank

            before += treebank.quote_normalizers()
            pre, post = [treebank.pre_tokenizer(), *pre], [*treebank.decoders_of_text(), *post]
        core.pre_tokenizer = pre_tokenizers.Sequence(pre)
        core.decoder = decoders.Sequence([decoders.Fuse(), *post])
    else:
        core.decoder = decoders.Fuse()
    core.normalizer = normalizers.Sequence(before)
    return core


def _without_model(core: tokenizers.Tokenizer) -> dict[str, object]:
    """All of a tokenizer's JSON except the model."""
    return {key: part for key, part in json.loads(core.to_str()).items() if key != "model"}


def _load_error(path: Path, what: str) -> DataError:
    todo = "Name the tokenizer.json of a run, or copy one there."
    return DataError(f"{what}.", where=str(path), todo=todo)


def _check_settings(kind: str, vocab_size: int | None, min_count: int, split: str) -> None:
    if kind not in KINDS:
        what = f"There is no tokenizer kind {kind!r}.{nearest(kind, KINDS)}"
        raise DataError(what, todo=f"The kinds are {', '.join(KINDS)}.")
    if split not in SPLITS or (split != SPLITS[0] and kind != "word"):
        what = f"kind {kind!r} cannot have split {split!r}.{nearest(split, SPLITS)}"
        raise DataError(
            what,
            todo=f"Only kind 'word' can be split by {SPLITS[1]!r}; the default is {SPLITS[0]!r}.",
        )
    if min_count < 1:
        raise DataError(f"min_count is {min_count}.", todo="Give 1 or more.")
    alphabet = len(BYTE_SYMBOLS) if kind in ("bpe", "unigram") else 1
    least = alphabet + len(SPECIAL_TOKEN_NAMES)
    if kind != "byte" and vocab_size is not None and vocab_size < least:
        what = f"vocab_size is {vocab_size}, but {kind!r} needs {alphabet} for its alphabet"
        raise DataError(
            f"{what} and {len(SPECIAL_TOKEN_NAMES)} for the special tokens.",
            todo=f"Give {least} or more.",
        )


def silence_fork_warning() -> None:
    """Silence the `tokenizers` warning about parallelism after a fork.

    The library's threads do not survive a fork. Before version 0.23 it prints a warning in the
    child unless TOKENIZERS_PARALLELISM is set. So it is set before each fork, which makes the
    child encode on one thread, and removed again in the parent.
    """
    name, added = "TOKENIZERS_PARALLELISM", []

    def before() -> None:
        if name not in os.environ:
            os.environ[name] = "false"
            added.append(name)

    def after_in_parent() -> None:
        while added:
            os.environ.pop(added.pop(), None)

    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=added.clear
        )


silence_fork_warning()
