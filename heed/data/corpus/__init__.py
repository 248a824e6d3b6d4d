"""Corpus readers: parallel, labeled and plain text, one record at a time.

Files become `lines` (decompressed, decoded), lines become `rows` (TSV, CSV, JSON lines, Hugging
Face datasets), rows become `records` (texts, label, place) by the `columns` that hold them. A
`Corpus` is one split; `split_names` infers from file names which files are train, dev and test.
"""

from heed.data.corpus.columns import Key
from heed.data.corpus.corpus import (
    NUMBER,
    Corpus,
    Files,
    check_task,
    class_order,
    file_names,
    infer_task,
    open_corpus,
)
from heed.data.corpus.data_folder import find_in_folder
from heed.data.corpus.lines import Fault, Place
from heed.data.corpus.records import Record
from heed.data.corpus.split_names import file_language, infer_splits, refuse_missing_sides

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
    "file_language",
    "file_names",
    "find_in_folder",
    "infer_splits",
    "infer_task",
    "open_corpus",
    "refuse_missing_sides",
]
