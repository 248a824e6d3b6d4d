"""Show one training batch, tensor by tensor, with its tokens (`heed check --batch`)."""

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
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import Corpus, infer_splits, infer_task, open_corpus
from heed.data.token_store import open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import make_printable
from heed.terminal import build_table

MEANINGS = {
    "ids": "input ids (for translation, the target shifted right)",
    "targets": f"next token or class to predict; {IGNORE_INDEX} where there is no loss",
    "mask": "True where ids is a real token, not padding",
    "positions": "position of each token in its sequence; a single row serves all",
    "segments": "packed sequence that each token belongs to",
    "source": "source ids of a translation",
    "source_mask": "True where source is a real token",
    "source_positions": "position of each source token",
}
EXAMPLES_SHOWN = 3


def show_batch(
    paths: Sequence[str | Path],
    *,
    task: str | None = None,
    unit: str = "line",
    header: bool | None = None,
) -> Group:
    """The first training batch of these files, with the default tokenizer and limits."""
    train = next(iter(infer_splits(paths, task=task).values()))
    task = task or infer_task(train, header=header)
    corpus = open_corpus(train, task=task, unit=unit, header=header)
    settings, limits = TokenizerConfig(), DataConfig()
    texts = (text for record in corpus.usable_records() for text in record.texts)
    tokenizer = Tokenizer.train(texts, kind=settings.kind, vocab_size=settings.vocab_size)
    classes = corpus.labels() if corpus.task == "classify" else []
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(corpus, tokenizer, classes=classes, root=Path(folder))
        batches = BucketedBatches(store, corpus.task, max_length=limits.max_length)
        batch = batches.batch(batches.plan(0), 0)
    return Group(_tensor_table(batch), _example_table(batch, corpus, tokenizer, classes))


def _tensor_table(batch: Batch) -> Table:
    examples, rows = len({*batch.rows}), len(batch.rows)
    size = f"{examples} example{'' if examples == 1 else 's'}"
    size += f" in {rows} windows" if rows > examples else ""  # a long one is read in several
    title = f"one batch: {size}, {batch.count} targets"
    table = build_table("tensor", "type", "shape", "meaning", title=title)
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            kind, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
            table.add_row(field.name, kind, str(shape), MEANINGS[field.name])
    return table


def _example_table(batch: Batch, corpus: Corpus, tokenizer: Tokenizer, classes: list[str]) -> Table:
    title = f"its first examples, as tokens ({make_printable(corpus.description)})"
    table = build_table("example", "tensor", "tokens", title=title)
    for i, row in enumerate(batch.rows[:EXAMPLES_SHOWN]):
        for name, tokens in _tokens_of_row(batch, i, tokenizer, classes):
            table.add_row(str(row + 1), name, Text(tokens))  # brackets are not markup
    return table


def _tokens_of_row(
    batch: Batch, i: int, tokenizer: Tokenizer, classes: list[str]
) -> Iterator[tuple[str, str]]:
    if batch.source is not None:
        yield "source", " ".join(tokenizer.ids_to_tokens(batch.source[i].tolist()))
    yield "ids", " ".join(tokenizer.ids_to_tokens(batch.ids[i].tolist()))
    if batch.targets.dim() == 1:
        yield "targets", classes[int(batch.targets[i])]
    else:
        predicted = [token for token in batch.targets[i].tolist() if token != IGNORE_INDEX]
        yield "targets", " ".join(tokenizer.ids_to_tokens(predicted))
