"""Reading gives back what was written, whatever the format, and reports where it cannot."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from heed.data import raw_files
from heed.data.corpus import (
    Corpus,
    Place,
    Record,
    class_order,
    infer_splits,
    open_corpus,
)
from heed.data.corpus import lines as line_reader
from heed.errors import DataError

# One folder serves all examples of a test: each writes its files anew.
quick = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ENDINGS = ("\n", "\r\n", "\r")
LINE_TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
CELL = st.text(st.characters(exclude_characters="\r\n\t", exclude_categories=["Cs"])).filter(
    lambda text: bool(text.strip()) and not text.startswith("\ufeff")
)
HAS_ZSTD = any(
    importlib.util.find_spec(name.partition(".")[0]) for name in ("compression.zstd", "zstandard")
)


def texts(corpus: Corpus) -> list[tuple[str, ...]]:
    return [record.texts for record in corpus]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


@quick
@given(
    st.lists(LINE_TEXT),
    st.lists(st.sampled_from(ENDINGS), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_lines_come_back_whatever_ends_them(
    tmp_path: Path, wanted: list[str], endings: list[str], bom: bool, newline_at_end: bool
) -> None:
    assume(newline_at_end or not wanted or wanted[-1])
    assume(bom or not wanted or not wanted[0].startswith("\ufeff"))
    # A "\n" right after "\r" and nothing between would be one ending, not two.
    ends = [endings[i % len(endings)] for i in range(len(wanted))]
    for i in range(1, len(wanted)):
        if not wanted[i] and ends[i - 1] == "\r" and ends[i] == "\n":
            ends[i] = "\r\n"
    if ends and not newline_at_end:
        ends[-1] = ""
    body = "".join(text + end for text, end in zip(wanted, ends, strict=True))
    path = write(tmp_path / "a.txt", ("\ufeff" if bom else "") + body)
    corpus = open_corpus([path], task="generate")
    assert texts(corpus) == [(text,) for text in wanted]
    assert [record.place.line for record in corpus] == list(range(1, len(wanted) + 1))


@quick
@given(st.binary(max_size=60) | st.text("a\r\n\ufeffé\u2028", max_size=40), st.integers(1, 7))
def test_chunks_never_show(tmp_path: Path, content: bytes | str, chunk: int) -> None:
    path = write(tmp_path / "a.txt", content)
    assume(not path.read_bytes().startswith((raw_files.GZIP_MAGIC, raw_files.ZSTD_MAGIC)))
    whole = path.read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    wanted = re.split("\r\n|\r|\n", whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_files, "CHUNK", chunk)
        assert list(line_reader.read_lines(str(path))) == (wanted if wanted[-1] else wanted[:-1])


@quick
@given(st.lists(st.tuples(CELL, CELL), min_size=2))
def test_formats_agree(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    sides = [
        write(tmp_path / name, "".join(pair[i] + "\n" for pair in pairs))
        for i, name in enumerate(("a.en", "a.fr"))
    ]
    table = write(tmp_path / "a.tsv", "source\ttarget\n" + "\n".join(map("\t".join, pairs)))
    rows = ({"id": i, "target": b, "source": a} for i, (a, b) in enumerate(pairs))
    lines = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    nested = ({"translation": {"en": a, "fr": b}} for a, b in pairs)
    folded = write(tmp_path / "b.jsonl", "\n".join(map(json.dumps, nested)))
    held = io.StringIO()
    csv.writer(held).writerows([("Source", "Target"), *pairs])
    commas = write(tmp_path / "a.csv", held.getvalue())
    for paths in (sides, [table], [lines], [folded], [commas]):
        corpus = open_corpus(paths, task="translate")
        assert texts(corpus) == pairs
        assert texts(corpus) == pairs, "a second reading gives the same"


@quick
@given(st.lists(st.tuples(st.text("a,\"'\n é", min_size=1), st.sampled_from("xy")), min_size=1))
def test_csv_cells_may_hold_anything(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    held = io.StringIO()
    csv.writer(held, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(
        [("text", "label"), *rows]
    )
    corpus = open_corpus([write(tmp_path / "a.csv", held.getvalue())], task="classify")
    assert [(record.texts[0], record.label) for record in corpus] == rows
    starts = [record.place.line for record in corpus]
    heights = [text.count("\n") + 1 for text, _ in rows]
    assert starts == [2 + sum(heights[:i]) for i in range(len(rows))]


@quick
@given(st.lists(st.sampled_from(["0", "1", "2"]), min_size=2, max_size=30), st.booleans())
def test_label_first_or_last(tmp_path: Path, labels: list[str], first: bool) -> None:
    sentences = [f"sentence number {i}" for i in range(len(labels))]
    columns = zip(labels, sentences, strict=True)
    rows = [(a, b) if first else (b, a) for a, b in columns]
    path = write(tmp_path / "a.tsv", "\n".join(map("\t".join, rows)))
    corpus = open_corpus([path], task="classify")
    assert [(record.label, record.texts[0]) for record in corpus] == list(
        zip(labels, sentences, strict=True)
    )
    assert f"label in column {1 if first else 2}" in corpus.description
    assert corpus.labels() == sorted(set(labels))


def test_other_splits_share_the_layout(tmp_path: Path) -> None:
    train = write(tmp_path / "train.tsv", "1\tgood film\n0\tbad film\n1\tnice film\n")
    test = write(tmp_path / "test.tsv", "0\tx\n1\tx\n")  # by itself, x would be the label
    opened = open_corpus([train], task="classify")
    assert open_corpus([test], task="classify", like=opened).labels() == ["0", "1"]
    a = write(tmp_path / "a.csv", "label,text\n1,good\n0,bad\n")
    b = write(tmp_path / "b.csv", "text,id,label\nfine,7,1\n")
    both = open_corpus([a, b], task="classify")
    assert [(record.label, *record.texts) for record in both] == [
        ("1", "good"),
        ("0", "bad"),
        ("1", "fine"),
    ]


def test_columns_by_name_number_and_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "n,premise,hypothesis,gold_label\n1,a b,c d,yes\n2,e,f,no\n")
    corpus = open_corpus([path], task="classify")
    assert [(record.texts, record.label) for record in corpus] == [
        (("a b", "c d"), "yes"),
        (("e", "f"), "no"),
    ]
    reordered = open_corpus([path], task="translate", columns=["hypothesis", 2])
    assert texts(reordered) == [("c d", "a b"), ("f", "e")]
    with pytest.raises(DataError, match="no column 'label'"):
        open_corpus([path], task="classify", columns=["premise", "label"])


def test_semicolons_and_json_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'label;text\n1;"a, b; c"\n0;d\n')
    assert texts(open_corpus([path], task="classify")) == [("a, b; c",), ("d",)]
    rows = [("a", 1), ("b", 2.0), ("c", True), ("d", None), ("e", " word ")]
    objects = (json.dumps({"text": text, "label": label}) for text, label in rows)
    corpus = open_corpus([write(tmp_path / "a.jsonl", "\n".join(objects))], task="classify")
    assert [record.label for record in corpus] == ["1", "2", "true", "", "word"]
    dropped: Counter[str] = Counter()
    assert len(list(corpus.usable_records(dropped))) == 4
    assert dropped == {"unlabeled": 1}


@given(st.lists(st.integers(-50, 50).map(str)))
def test_numbers_are_ordered_as_numbers(labels: list[str]) -> None:
    assert class_order(labels) == sorted(set(labels), key=int)
    assert class_order([*labels, "word"]) == sorted({*labels, "word"})


def test_documents_and_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\none\ntwo\n \n\nthree\r\n")
    documents = list(open_corpus([path], task="generate", unit="document"))
    assert [(record.texts[0], record.place.line) for record in documents] == [
        ("one\ntwo", 3),
        ("three", 7),
    ]
    whole = open_corpus([path, path], task="generate", unit="file")
    assert texts(whole) == [("\n\none\ntwo\n \n\nthree",)] * 2


@pytest.mark.parametrize("unit", ["line", "document", "file"])
def test_invalid_bytes_are_named_or_flagged(tmp_path: Path, unit: str) -> None:
    path = write(tmp_path / "a.txt", b"fine\nd\xc3\xa9j\xe0\nfine\n")
    corpus = open_corpus([path], task="generate", unit=unit)
    with pytest.raises(DataError, match=r"a\.txt:2:5: byte 5 .* Save the file as UTF-8"):
        list(corpus)
    flagged = [record for record in corpus.scan() if record.fault]
    assert [(record.place, record.fault and record.fault.byte) for record in flagged] == [
        (Place(str(path), 2), 5)
    ]
    assert "déj\ufffd" in flagged[0].texts[0]


def test_sides_of_different_length(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.en", "a\nb\nc\nd\n"), write(tmp_path / "a.fr", "a\nb\n")]
    for order in (paths, paths[::-1]):
        with pytest.raises(DataError, match=r"a\.en:3: .*4 lines|a\.en:3: .* 2 lines.* 4"):
            list(open_corpus(order, task="translate"))


@pytest.mark.parametrize(
    ("name", "content", "line", "says"),
    [
        ("a.tsv", "0\ta b\n1\tb c\n0\ta\tb\n", 3, "3 cells where 2"),
        ("a.csv", 'label,text\n0,a\n1,"b"c\n0,d\n', 3, "not CSV"),
        ("a.csv", 'label,text\n0,a\n1,"b\n0,d\n', 3, "not CSV"),
        ("a.csv", f'label,text\n0,a\n1,"{"b" * 200_000}"\n', 3, "field limit"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', 2, "not JSON"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{a\n', 2, "at character 2 of the line"),
        ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', 2, "not an object"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": 3, "label": 1}\n', 2, "a number"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"label": 1}\n', 2, "'text' is missing"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "\\ud800", "label": 1}', 2, "half"),
        ("a.jsonl", '{"text": "a", "label": 1}\n' + "[" * 100_000, 2, "JSON"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, content: str, line: int, says: str) -> None:
    corpus = open_corpus([write(tmp_path / name, content)], task="classify")
    with pytest.raises(DataError, match=rf"{re.escape(name)}:{line}: .*{says}"):
        list(corpus)


def test_blank_lines_are_dropped_not_faults(tmp_path: Path) -> None:
    contents = {
        "a.tsv": "0\ta b\n\n1\tb c\n  \n",
        "a.csv": "\nlabel,text\n0,a b\n\n1,b c\n,\n",
        "a.jsonl": '\n{"label": 0, "text": "a b"}\n{"label": 1, "text": "b c"}\n\n',
    }
    for name, content in contents.items():
        corpus = open_corpus([write(tmp_path / name, content)], task="classify")
        assert [record.texts[0] for record in corpus.usable_records()] == ["a b", "b c"]
        assert {corpus.drop_reason(record) for record in corpus} == {None, "empty"}


def test_compressed_is_the_same(tmp_path: Path) -> None:
    body = "".join(f"{i % 2}\tsentence {i} é\n" for i in range(5000)).encode()
    plain = open_corpus([write(tmp_path / "a.tsv", body)], task="classify")
    half = len(body) // 2
    two_members = gzip.compress(body[:half]) + gzip.compress(body[half:])
    for name in ("a.tsv.gz", "b.tsv"):  # known by its name, and by its first bytes
        zipped = open_corpus([write(tmp_path / name, two_members)], task="classify")
        assert texts(zipped) == texts(plain)
    cut = open_corpus([write(tmp_path / "c.txt.gz", two_members[:-20])], task="generate")
    with pytest.raises(DataError, match=r"c\.txt\.gz: this file cannot be read"):
        list(cut)
    *_, last = cut.scan()
    assert last.fault is not None
    assert last.fault.code == "unreadable"


@pytest.mark.skipif(HAS_ZSTD, reason="zstd can be read here")
def test_zstd_says_what_to_install(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.zst", raw_files.ZSTD_MAGIC + b"rest")
    with pytest.raises(DataError, match="pip install zstandard"):
        list(open_corpus([path], task="generate"))


def test_zstd_frames(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    body = "".join(f"sentence {i}\n" for i in range(50_000)).encode()
    press = zstandard.ZstdCompressor().compress
    frames = press(body) + press(body)
    path = write(tmp_path / "a.txt.zst", frames)
    assert len(texts(open_corpus([path], task="generate"))) == 100_000
    cut = open_corpus([write(tmp_path / "b.txt.zst", frames[:-9])], task="generate")
    with pytest.raises(DataError, match="cut short"):
        list(cut)


def test_datasets_need_the_extra(tmp_path: Path) -> None:
    if importlib.util.find_spec("datasets"):
        pytest.skip("datasets is installed")
    with pytest.raises(DataError, match=r"pip install '\.\[hf\]'"):
        open_corpus(["hf:stanfordnlp/sst2@train"], task="classify")
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(DataError, match="datasets"):
        open_corpus([tmp_path], task="classify")


def test_saved_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the hf extra is not installed")
    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["neg", "pos"]), "text": datasets.Value("string")}
    )
    table = {"label": [0, 1, -1], "text": ["a b", "c d", "e f"]}
    saved = datasets.Dataset.from_dict(table, features=features)
    folder = tmp_path / "saved"
    datasets.DatasetDict({"train": saved, "validation": saved}).save_to_disk(str(folder))
    found = infer_splits([folder])
    assert list(found) == ["train", "dev"]
    corpus = open_corpus(found["train"], task="classify")
    assert [(record.label, record.texts[0]) for record in corpus] == [
        ("neg", "a b"),
        ("pos", "c d"),
        ("-1", "e f"),
    ]
    assert len(corpus.fingerprint()) == 32
    with pytest.raises(DataError, match="splits train, validation"):
        open_corpus([folder], task="classify")


def test_fingerprint_is_of_bytes_alone(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    one = [write(tmp_path / "a.en", "ab"), write(tmp_path / "a.fr", "c")]
    moved = [write(tmp_path / "x" / "b.en", "ab"), write(tmp_path / "x" / "b.fr", "c")]
    shifted = [write(tmp_path / "c.en", "a"), write(tmp_path / "c.fr", "bc")]
    fingerprints = [
        open_corpus(paths, task="translate").fingerprint() for paths in (one, moved, shifted)
    ]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n")
    with pytest.raises(DataError, match="Did you mean 'translate'"):
        open_corpus([path], task="translat")
    with pytest.raises(DataError, match="no such file"):
        open_corpus([tmp_path / "b.txt"], task="generate")
    with pytest.raises(DataError, match="is a folder"):
        open_corpus([tmp_path], task="generate")
    with pytest.raises(DataError, match="2 columns of text"):
        open_corpus([write(tmp_path / "one.tsv", "one\n")], task="translate")
    with pytest.raises(DataError, match="this file has no text"):
        open_corpus([write(tmp_path / "a.tsv", "")], task="classify")
    with pytest.raises(DataError, match="different formats"):
        open_corpus([path, tmp_path / "a.tsv"], task="generate")
    with pytest.raises(DataError, match="no file"):
        open_corpus([], task="generate")


def test_one_side_of_a_translation_asks_for_the_other(tmp_path: Path) -> None:
    sides = [write(tmp_path / f"train.{side}", "a b\nc\n") for side in ("en", "fr")]
    for side in sides:
        with pytest.raises(DataError, match=r"one side .* Name the file of the other side too"):
            open_corpus([side], task="translate")
    like = open_corpus(sides, task="translate")
    with pytest.raises(DataError, match="one side"):
        open_corpus(write(tmp_path / "dev.en", "a b\n"), task="translate", like=like)
    both = write(tmp_path / "both.txt", "a b\tc\n")  # tabs make a table of plain text
    assert texts(open_corpus([both], task="translate")) == [("a b", "c")]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    sides = [tmp_path / "a.en.gz", tmp_path / "a.fr.gz"]
    line = b"a sentence of a few words that comes again and again\n"
    for side in sides:
        write(side, gzip.compress(line * 100_000, 1))
    corpus = open_corpus(sides, task="translate")
    tracemalloc.start()
    try:
        assert sum(1 for _ in corpus.usable_records()) == 100_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(line) * 100_000 / 2, "less than one side alone would take"


def test_records_are_light_and_places_read_well() -> None:
    record = Record(("a",), None, Place("a.en", 12))
    assert str(record.place) == "a.en:12"
    assert str(Place("a\udcff", 1)) == "a\\udcff:1"


def test_no_torch_for_reading() -> None:
    program = "import sys, heed.data.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_records_that_match_a_pattern_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n<title>two</title>\nthree\nfour <b>\n")
    (tmp_path / "a.fr").write_text("un\n<title>deux</title>\ntrois\n<b> quatre\n")
    paths = [tmp_path / "a.en", tmp_path / "a.fr"]
    corpus = open_corpus(paths, task="translate", drop="^<")
    dropped: Counter[str] = Counter()
    assert [record.texts[0] for record in corpus.usable_records(dropped)] == ["one", "three"]
    assert dropped == {"drop-pattern": 2}
    assert len(list(open_corpus(paths, task="translate").usable_records())) == 4
