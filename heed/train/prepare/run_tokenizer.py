"""The tokenizer of a run: its own, its origin's, or one learnt from its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain

from heed.config import Recipe, TokenizerConfig
from heed.data.corpus import Corpus, Record, open_corpus
from heed.data.held_out import hold_out_dev
from heed.data.token_store import cache_root
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.runs.run import Run
from heed.train.prepare.init_from import Origin

Say = Callable[[str], None]
Source = Callable[[], Iterator[Record]]
"""Texts that can be read again and again."""
FEWEST_PIECES, MOST_PIECES, CHARACTERS_A_PIECE = 400, 8000, 100


def tokenizer_for(
    recipe: Recipe,
    run: Run,
    corpus: Corpus,
    origin: Origin | None,
    say: Say,
    *,
    dev_within: bool = False,
) -> Tokenizer:
    """The run's own; its origin's; else one learnt before from this very text, or now.

    `dev_within`: a part of the corpus is set aside to choose by. Its words are not to be known.
    """
    if run.tokenizer_path.exists():
        return Tokenizer.load(run.tokenizer_path)
    if origin is not None:
        origin.tokenizer.save(run.tokenizer_path)
        return origin.tokenizer
    settings, more = recipe.tokenizer, tokenizer_text(recipe)
    apart = recipe.data.dev_seed if dev_within else None
    learnt = settings.model_dump_json(exclude={"dropout"})
    told = f"{corpus.identity()} {apart} {learnt} {[one.identity() for one in more]}"
    name = blake2b(told.encode(), digest_size=16).hexdigest()
    kept = cache_root() / "tokenizers" / f"{name}.json"
    if kept.exists():
        tokenizer = Tokenizer.load(kept)
    else:
        say(f"Learning a {settings.kind} tokenizer…")
        own = corpus.usable_records if apart is None else _all_but(corpus, apart)
        tokenizer = _learn(settings, [own, *(one.usable_records for one in more)])
        kept.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(kept)
    tokenizer.save(run.tokenizer_path)
    return tokenizer


def tokenizer_text(recipe: Recipe) -> list[Corpus]:
    """What a tokenizer is to learn from beside the training text: the text of any kind of file."""
    return [open_corpus([path], task="generate") for path in recipe.tokenizer.text]


def _all_but(corpus: Corpus, seed: int) -> Source:
    """The texts of a corpus but those set aside."""
    apart, _ = hold_out_dev(sum(1 for _ in corpus.usable_records()), seed)
    hidden = frozenset(apart.tolist())
    return lambda: (record for i, record in enumerate(corpus.usable_records()) if i not in hidden)


def _learn(settings: TokenizerConfig, sources: Sequence[Source]) -> Tokenizer:
    def texts() -> Iterator[str]:
        for record in chain.from_iterable(source() for source in sources):
            yield from record.texts

    size = settings.vocab_size
    if size is None and settings.kind in ("bpe", "unigram"):
        # A piece must be met often enough to be learnt: a small corpus gets few.
        characters = sum(map(len, texts()))
        size = min(MOST_PIECES, max(FEWEST_PIECES, characters // CHARACTERS_A_PIECE))
    return Tokenizer.train(
        texts(),
        kind=settings.kind,
        vocab_size=size,
        min_count=settings.min_count,
        lowercase=settings.lowercase,
        split=settings.split,
    )
