"""`heed check --batch`: one batch as training would see it, tensor by tensor, with its text."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from heed.config import DataConfig, TokenizerConfig
from heed.data.batching.bucketed import IGNORED, Batch, Batches
from heed.data.corpus import Corpus, infer_task, open_corpus, splits
from heed.data.corpus.text_files import printable
from heed.data.token_store import open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.terminal import build_table

MEANINGS = {
    "ids": "what the model reads (of a translation, the target so far)",
    "targets": f"what it should say: the next token or the class; {IGNORED} asks nothing",
    "mask": "True where ids is a real token, not padding",
    "positions": "where each token stands in its text; one row stands for all",
    "segments": "which packed text each token is of",
    "source": "what a translator reads",
    "source_mask": "True where source is a real token",
    "source_positions": "where each source token stands",
}
SHOWN = 3


def show_batch(paths: Sequence[str | Path], *, task: str | None = None) -> Group:
    """The first training batch of these files, with the default tokenizer and limits."""
    train = next(iter(splits(paths, task=task).values()))
    corpus = open_corpus(train, task=task or infer_task(train))
    settings, limits = TokenizerConfig(), DataConfig()
    texts = (text for record in corpus.kept() for text in record.texts)
    tokenizer = Tokenizer.train(texts, kind=settings.kind, vocab_size=settings.vocab_size)
    classes = corpus.labels() if corpus.task == "classify" else []
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(corpus, tokenizer, classes=classes, root=Path(folder))
        batches = Batches(store, corpus.task, max_length=limits.max_length)
        batch = batches.batch(batches.plan(0), 0)
    return Group(_tensors(batch), _texts(batch, corpus, tokenizer, classes))


def _tensors(batch: Batch) -> Table:
    texts, rows = len({*batch.rows}), len(batch.rows)
    held = f"{texts} text{'' if texts == 1 else 's'}"
    held += f" in {rows} windows" if rows > texts else ""  # a long one is read in several
    title = f"one batch: {held}, {batch.count} targets asked for"
    table = build_table("tensor", "type", "shape", "meaning", title=title)
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            kind, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
            table.add_row(field.name, kind, str(shape), MEANINGS[field.name])
    return table


def _texts(batch: Batch, corpus: Corpus, tokenizer: Tokenizer, classes: list[str]) -> Table:
    title = f"its first texts, as pieces ({printable(corpus.decided)})"
    table = build_table("text", "tensor", "pieces", title=title)
    for i, row in enumerate(batch.rows[:SHOWN]):
        for name, shown in _pieces(batch, i, tokenizer, classes):
            table.add_row(str(row + 1), name, Text(shown))  # brackets are no markup
    return table


def _pieces(
    batch: Batch, i: int, tokenizer: Tokenizer, classes: list[str]
) -> Iterator[tuple[str, str]]:
    if batch.source is not None:
        yield "source", " ".join(tokenizer.pieces_of(batch.source[i].tolist()))
    yield "ids", " ".join(tokenizer.pieces_of(batch.ids[i].tolist()))
    if batch.targets.dim() == 1:
        yield "targets", classes[int(batch.targets[i])]
    else:
        asked = [token for token in batch.targets[i].tolist() if token != IGNORED]
        yield "targets", " ".join(tokenizer.pieces_of(asked))
