"""Source tokens are masked in training alone, at the given share, anew in every epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heed.config import Recipe
from heed.data.batching.batch import Batch
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import open_corpus
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.special_tokens import EOS, MASK, PAD
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError
from heed.train.prepare.setup import validate_recipe

WORDS = [f"w{i}" for i in range(30)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder, random = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for name in ("a.en", "a.fr"):
        lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(200)]
        (folder / name).write_text("\n".join(lines))
    corpus = open_corpus([folder / "a.en", folder / "a.fr"], task="translate")
    return open_store(corpus, Tokenizer.train(WORDS, kind="word"), root=folder / "cache")


def made(
    store: Store, share: float, epoch: int, *, seed: int = 0, both: bool = False
) -> list[Batch]:
    batches = BucketedBatches(
        store,
        "translate",
        max_length=64,
        batch_size=32,
        seed=seed,
        mask_share=share,
        bidirectional=both,
    )
    plan = batches.plan_in_order() if epoch < 0 else batches.plan(epoch)
    return [batches.batch(plan, number) for number in range(len(plan))]


def sources(batches: list[Batch]) -> torch.Tensor:
    found = [batch.source.flatten() for batch in batches if batch.source is not None]
    assert len(found) == len(batches)
    return torch.cat(found)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_this_share_of_source_tokens_is_masked_and_nothing_else(
    store: Store, share: float, both: bool
) -> None:
    shown, hidden = (made(store, s, 3, both=both) for s in (0.0, share))
    for one, other in zip(shown, hidden, strict=True):
        for (name, value), changed in zip(
            one.tensors().items(), other.tensors().values(), strict=True
        ):
            assert name == "source" or torch.equal(value, changed)
        assert (one.rows, one.count) == (other.rows, other.count)
    plain, masked = sources(shown), sources(hidden)
    words = (plain != EOS) & (plain != PAD)
    assert torch.equal(plain[~words], masked[~words])
    covered = masked[words] == MASK
    assert torch.equal(plain[words][~covered], masked[words][~covered])
    spread = (share * (1 - share) / len(covered)) ** 0.5
    assert float(covered.float().mean()) == pytest.approx(share, abs=4 * spread)


def test_masking_depends_on_seed_epoch_and_number(store: Store) -> None:
    def where(epoch: int, seed: int) -> list[list[bool]]:
        """Of each text in the order of the store, which words are hidden."""
        found: dict[int, list[bool]] = {}
        for batch in made(store, 0.3, epoch, seed=seed):
            assert batch.source is not None
            for row, source in zip(batch.rows, batch.source, strict=True):
                found[row] = (source[: len(store.sides[0][row])] == MASK).tolist()
        return [found[row] for row in range(200)]

    assert where(0, 0) == where(0, 0)
    assert where(0, 0) != where(1, 0)
    assert where(0, 0) != where(0, 1)


def test_evaluation_shows_everything(store: Store) -> None:
    shown, hidden = made(store, 0.0, -1), made(store, 0.5, -1)
    assert torch.equal(sources(shown), sources(hidden))


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_only_a_translation_has_a_source(task: str) -> None:
    tables = {"task": task, "data": {"synthetic": 9}, "train": {"source_token_dropout": 0.1}}
    with pytest.raises(ConfigError, match="source_token_dropout is for task 'translate'"):
        validate_recipe(Recipe.of(tables))
