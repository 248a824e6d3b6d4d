"""The tokenizer of a run: its own, its pretrained model's, or one trained on its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain

from heed import checksums
from heed.checksums import DamagedError
from heed.config import DataConfig, Recipe, TokenizerConfig
from heed.data.corpus import Corpus, Record, open_corpus
from heed.data.held_out import hold_out_dev
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError
from heed.files import cache_root
from heed.runs.load import load_tokenizer
from heed.runs.run import Run
from heed.train.prepare.init_from import PretrainedModel

Say = Callable[[str], None]
Source = Callable[[], Iterator[Record]]
"""Records that can be read repeatedly."""
MIN_VOCAB, MAX_VOCAB, CHARACTERS_PER_TOKEN = 400, 8000, 100
"""Default vocabulary size of subword tokenizers: one token for so many characters of text."""


def get_tokenizer(
    recipe: Recipe,
    run: Run,
    corpus: Corpus,
    pretrained: PretrainedModel | None,
    say: Say,
    *,
    dev_in_train: bool = False,
) -> Tokenizer:
    """The run's tokenizer, or its pretrained model's; else a cached or a newly trained one.

    `dev_in_train`: some of the corpus is set aside for dev, and the tokenizer is not trained on it.
    """
    recorded, damaged = "files" in run.environment(), run.find_damaged_tokenizer()
    if recorded and (damaged is None or recipe.init.from_model is not None):
        return load_tokenizer(run)
    if pretrained is not None:
        pretrained.tokenizer.save(run.tokenizer_path)
        return pretrained.tokenizer
    if damaged is not None:
        say(f"{damaged}: this file is missing or damaged; it is written again.")
    tokenizer = _cached_tokenizer(recipe, corpus, say, dev_in_train=dev_in_train)
    tokenizer.save(run.tokenizer_path)
    return load_tokenizer(run) if recorded else tokenizer


def _cached_tokenizer(recipe: Recipe, corpus: Corpus, say: Say, *, dev_in_train: bool) -> Tokenizer:
    """The tokenizer that the recipe trains on this corpus, from the cache if it is there."""
    settings, extra = recipe.tokenizer, open_tokenizer_text(recipe)
    data = recipe.data
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
