"""What training makes of its text and keeps in the cache: the tokenizer and the token stores.

Free of torch: a process of its own makes them while training imports torch (`tokenize_ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

from heed import checksums
from heed.checksums import DamagedError
from heed.config import DataConfig, Recipe, TokenizerConfig
from heed.data.corpus import Corpus, Record, open_corpus
from heed.data.held_out import hold_out_dev
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError
from heed.files import cache_root

if TYPE_CHECKING:  # the process of `tokenize_ahead` prints nothing
    from heed.terminal import Say

Source = Callable[[], Iterator[Record]]
"""Records that can be read repeatedly."""
MIN_VOCAB, MAX_VOCAB, CHARACTERS_PER_TOKEN = 400, 8000, 100
"""Default vocabulary size of subword tokenizers: one token for so many characters of text."""


def cached_tokenizer(recipe: Recipe, corpora: dict[str, Corpus], say: Say) -> Tokenizer:
    """The tokenizer that the recipe trains on its text, from the cache if it is there.

    It is not trained on what is set aside of train for dev.
    """
    settings, extra = recipe.tokenizer, open_tokenizer_text(recipe)
    data, corpus = recipe.data, corpora["train"]
    dev_in_train = data.splits_off_dev and "dev" not in corpora
    held_out = (data.dev_seed, data.dev_share) if dev_in_train else None
    keys = settings.model_dump_json(exclude={"dropout"})
    identity = f"{corpus.identity()} {held_out} {keys} {[one.identity() for one in extra]}"
    name = blake2b(identity.encode(), digest_size=16).hexdigest()
    cached = cache_root() / "tokenizers" / f"{name}.json"
    if cached.exists():
        try:
            content = checksums.read_json(cached, todo="It is trained again.")
            return Tokenizer.parse(content["tokenizer"], cached)
        except (DamagedError, DataError, KeyError) as error:
            say(f"The cached tokenizer cannot be used: {error}")
    say(f"Training a {settings.kind} tokenizer…")
    train = _without_dev(corpus, data) if dev_in_train else corpus.usable_records
    tokenizer = _train(settings, [train, *(one.usable_records for one in extra)])
    cached.parent.mkdir(parents=True, exist_ok=True)
    checksums.write_json(cached, {"tokenizer": tokenizer.core.to_str()})
    return tokenizer


def open_tokenizer_text(recipe: Recipe) -> list[Corpus]:
    """Open the files of `tokenizer.text`, which may be of any kind."""
    return [open_corpus([path], task="generate") for path in recipe.tokenizer.text]


def open_stores(
    recipe: Recipe, corpora: dict[str, Corpus], tokenizer: Tokenizer, classes: Sequence[str]
) -> dict[str, Store]:
    """The token store of every split, from the cache if it is there."""
    dropout = {"train": recipe.tokenizer.dropout}
    return {
        name: open_store(
            corpus, tokenizer, classes=classes, dropout=dropout.get(name, 0.0), seed=recipe.seed
        )
        for name, corpus in corpora.items()
    }


def _without_dev(corpus: Corpus, data: DataConfig) -> Source:
    """The records of a corpus without those set aside for dev."""
    held_out, _ = hold_out_dev(sum(1 for _ in corpus.usable_records()), data)
    rows = frozenset(held_out.tolist())
    return lambda: (record for i, record in enumerate(corpus.usable_records()) if i not in rows)


def _train(settings: TokenizerConfig, sources: Sequence[Source]) -> Tokenizer:
    def texts() -> Iterator[str]:
        for record in chain.from_iterable(source() for source in sources):
            yield from record.texts

    size = settings.vocab_size
    if size is None and settings.kind in ("bpe", "unigram"):
        # A token must occur often enough to be learned: a small corpus gets few.
        characters = sum(map(len, texts()))
        size = min(MAX_VOCAB, max(MIN_VOCAB, characters // CHARACTERS_PER_TOKEN))
    return Tokenizer.train(
        texts(),
        kind=settings.kind,
        vocab_size=size,
        min_count=settings.min_count,
        lowercase=settings.lowercase,
        split=settings.split,
    )
