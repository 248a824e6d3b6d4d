"""Readers: parallel, labelled and plain text, one record at a time."""

from heed.data.corpus.columns import Key
from heed.data.corpus.corpus import (
    NUMBER,
    Corpus,
    Files,
    check_task,
    class_order,
    infer_task,
    names_of,
    open_corpus,
)
from heed.data.corpus.infer_splits import splits
from heed.data.corpus.records import Record
from heed.data.corpus.text_files import Fault, Place

__all__ = [
    "NUMBER",
    "Corpus",
    "Fault",
    "Files",
    "Key",
    "Place",
    "Record",
    "check_task",
    "class_order",
    "infer_task",
    "names_of",
    "open_corpus",
    "splits",
]
