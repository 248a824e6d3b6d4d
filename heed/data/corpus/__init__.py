"""Readers: parallel, labelled and plain text, one record at a time."""

from heed.data.corpus.columns import Key
from heed.data.corpus.files import Fault, Place
from heed.data.corpus.reader import (
    NUMBER,
    Corpus,
    class_order,
    infer_task,
    open_corpus,
)
from heed.data.corpus.records import Record
from heed.data.corpus.splits import splits

__all__ = [
    "NUMBER",
    "Corpus",
    "Fault",
    "Key",
    "Place",
    "Record",
    "class_order",
    "infer_task",
    "open_corpus",
    "splits",
]
