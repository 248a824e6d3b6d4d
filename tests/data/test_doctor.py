"""The doctor finds planted problems, and passes nothing that reading then rejects."""

from __future__ import annotations

import gzip
import io
import json
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from heed.config import DataConfig
from heed.data.corpus import Corpus, Place, Record, open_corpus
from heed.data.doctor import (
    Finding,
    Limits,
    Report,
    check,
    duplicates,
    examine,
    find_overlap,
    render_report,
)
from heed.data.doctor.duplicates import as_digests, find_repeats
from heed.data.doctor.scan import WORD
from heed.data.held_out import hold_out_dev
from heed.errors import DataError, HeedError

quick = settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SHARED = Path(__file__).parents[3] / "shared" / "data"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def find(report: Report, code: str, split: str = "train") -> Finding:
    [found] = [one for one in report.findings if (one.code, one.split) == (code, split)]
    return found


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


def shared(folder: str, *names: str) -> Report:
    paths = [SHARED / folder / name for name in names]
    if not all(path.is_file() for path in paths):
        pytest.skip(f"the corpus {folder} is not beside the repository")
    report = check(paths)
    assert report.ok
    return report


def test_speeches_show_their_overlap() -> None:
    report = shared("speeches", "train_CLS.tsv", "test_CLS.tsv")
    test = report.summary["test"]
    assert (test.in_train, test.in_train_same_label, test.kept) == (551, 551, 750)
    assert "551 of 750 lines" in find(report, "overlap", "test").message


def test_sst2_shows_its_overlap() -> None:
    report = shared("sst2", "train.tsv", "dev.tsv", "test.tsv")
    test = report.summary["test"]
    assert (test.in_train, test.kept) == (2, 1821)


def test_ted_shows_its_overlap_and_its_tags() -> None:
    sides = [f"{split}.{side}" for split in ("train", "dev", "test") for side in ("en", "fr")]
    report = shared("ted-en-fr", *sides)
    test = report.summary["test"]
    assert (test.in_train, test.kept) == (18, 1305)
    assert test.source_in_train is not None
    assert test.source_in_train >= 18
    assert "markup" in codes(report)


def test_speeches_to_generate_from() -> None:
    tests = [f"test_LM_{name}.txt" for name in ("hbush", "obama", "wbush")]
    report = shared("speeches", "train_LM.txt", *tests)
    assert report.task == "generate"
    assert sum(one.in_train or 0 for one in report.summary.values()) == 4


CLEAN = [(f"this is sentence {i} of ten", f"voici la phrase {i} sur dix") for i in range(10)]


@pytest.mark.parametrize(
    ("code", "source", "target"),
    [
        ("empty", "", "quelque chose"),
        ("empty", "something", " \t "),
        ("control", "some\x00thing", "quelque chose"),
        ("control", "something", "quelque\u2028chose"),
        ("replacement", "caf\ufffd", "café"),
        ("markup", "<talkid>1</talkid>", "<talkid>un</talkid>"),
        ("over-long", "word " * 201, "mot " * 201),
        ("ratio", "yes", "oui " * 6),
        ("identical", "the same ", "the same"),
        ("duplicate", *CLEAN[0]),
    ],
)
def test_planted_problems_are_found_at_their_line(
    tmp_path: Path, code: str, source: str, target: str
) -> None:
    for line in (3, 10):
        pairs = [*CLEAN[: line - 1], (source, target), *CLEAN[line - 1 :]]
        sides = [
            write(tmp_path / name, "".join(f"{pair[i]}\n" for pair in pairs))
            for i, name in enumerate(("a.en", "a.fr"))
        ]
        report = check(sides)
        found = find(report, code)
        in_target = source == "something"
        assert found.places == (Place(str(sides[in_target]), line),)
        assert found.count == 1
        assert report.ok, "none of these keeps a model from training"
        assert codes(report) == {code}
    clean = [
        write(tmp_path / name, "".join(f"{pair[i]}\n" for pair in CLEAN))
        for i, name in enumerate(("b.en", "b.fr"))
    ]
    assert check(clean).findings == ()


def test_errors_are_found_at_their_line(tmp_path: Path) -> None:
    longer = write(tmp_path / "a.en", "one\ntwo\nthree\n")
    shorter = write(tmp_path / "a.fr", "un\nd\xe9ux\n".encode("latin-1"))
    report = check([longer, shorter])
    assert find(report, "sides-differ").places == (Place(str(longer), 3),)
    assert find(report, "invalid-utf8").places == (Place(str(shorter), 2),)
    assert not report.ok
    assert report.exit_code == 1
    assert {one.code for one in report.errors} == {"sides-differ", "invalid-utf8"}


def test_limits_are_the_readers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one two three four\n" * 2 + "one\n")
    assert "over-long" not in codes(check([path]))
    assert find(check([path], limits=Limits(words=3)), "over-long").count == 2
    assert find(check([path], limits=Limits(chars=3, places=1)), "over-long").places == (
        Place(str(path), 1),
    )
    assert "over-long" not in codes(check([path], unit="document", limits=Limits(chars=3)))


def labeled(path: Path, labels: Sequence[str], word: str = "text") -> Path:
    return write(path, "".join(f"{label}\t{word} number {i}\n" for i, label in enumerate(labels)))


def test_labels(tmp_path: Path) -> None:
    train = labeled(tmp_path / "train.tsv", ["good", "bad"] * 100 + ["goood", "Bad"])
    test = labeled(tmp_path / "test.tsv", ["good", "badd"])
    report = check([train, test])
    unseen = find(report, "unseen-label", "test")
    assert unseen.severity == "error"
    assert "Did you mean 'bad'?" in unseen.message
    assert unseen.places == (Place(str(test), 2),)
    slips = {one.message.split()[1] for one in report.findings if one.code == "misspelled-label"}
    assert slips == {"'goood'", "'Bad'"}
    assert find(report, "balance").severity == "warning"
    assert report.summary["train"].labels == {"Bad": 1, "bad": 100, "good": 100, "goood": 1}


def test_one_class_is_nothing_to_learn(tmp_path: Path) -> None:
    train = labeled(tmp_path / "train.tsv", ["1"] * 5)
    report = check([train])
    assert find(report, "one-class").severity == "error"
    assert "1 distinct label in" in report.summary["train"].description
    two = labeled(tmp_path / "train.tsv", ["1", "0"] * 5)
    test = labeled(tmp_path / "test.tsv", ["1"] * 5)
    assert find(check([two, test]), "one-class", "test").severity == "warning"


def test_one_text_under_two_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "0\ta b\n1\tc d\n1\ta b \n0\te f\n0\tc\n")
    found = find(check([path]), "contradiction")
    assert [place.line for place in found.places] == [1, 3]


@pytest.mark.parametrize("lines", [1, 2, 3, 8])
def test_what_is_too_little_to_set_some_aside_for_dev_is_an_error(
    lines: int, tmp_path: Path
) -> None:
    """Exactly where training would refuse it, for want of an example or of a class."""
    data, task = DataConfig(), "classify"
    for number in range(lines):
        rows = [f"{'rare' if row == number else 'common'}\ta b {row}\n" for row in range(lines)]
        path = write(tmp_path / "train.tsv", "".join(rows))
        report = check([path], task=task)
        if lines == 1:  # one class, too
            assert not report.ok
            continue
        dev, _ = hold_out_dev(lines, data)
        common_left = any(row != number and row not in dev for row in range(lines))
        assert report.ok == (number not in dev and common_left)
    text = check([write(tmp_path / "train.txt", "a b c\n" * lines)])
    assert report_codes(text, "too-few") == (["too-few"] if lines == 1 else [])


def report_codes(report: Report, code: str) -> list[str]:
    return [one.code for one in report.errors if one.code == code]


def test_what_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    for paths in ([tmp_path / "no.tsv"], [tmp_path], [write(tmp_path / "a.tsv", "")], []):
        report = check(paths)
        assert [one.code for one in report.errors] == ["unreadable"]
        assert json.loads(report.to_json())["ok"] is False
    assert (
        "is not a file format" in check([tmp_path / "a.tsv"], file_format="xml").errors[0].message
    )
    empty = check([write(tmp_path / "a.txt", "\ufeff\n \n")])
    assert [one.code for one in empty.errors] == ["nothing-left"]


def test_a_task_that_there_is_not_is_no_finding(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "0\ta\n1\tb\n")
    with pytest.raises(DataError, match="Did you mean 'classify'"):
        check([path], task="clasify")


@pytest.mark.parametrize("count", [1, 2])
def test_one_label_is_and_two_are(count: int, tmp_path: Path) -> None:
    train = labeled(tmp_path / "train.tsv", ["one", "two"])
    test = labeled(tmp_path / "test.tsv", ["new", "strange"][:count])
    message = find(check([train, test]), "unseen-label", "test").message
    assert message.startswith("1 of the labels is" if count == 1 else "2 of the labels are")


TEXT = st.text("ab ", max_size=3)


def records(rows: Sequence[Sequence[str]]) -> list[Record]:
    return [Record(tuple(row), None, Place("x", i)) for i, row in enumerate(rows, 1)]


@given(st.lists(st.tuples(TEXT, TEXT)), st.lists(st.tuples(TEXT, TEXT)))
def test_overlap_is_exact_text_after_strip(
    train: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    pairs = {(a.strip(), b.strip()) for a, b in train}
    sources = {a for a, _ in pairs}
    found = find_overlap(records(train), records(other))
    assert found == [(a.strip(), b.strip()) in pairs for a, b in other]
    found = find_overlap(records(train), records(other), source_only=True)
    assert found == [a.strip() in sources for a, _ in other]


@quick
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("01")), min_size=1))
def test_repeats_and_contradictions_are_what_a_dictionary_says(
    tmp_path: Path, rows: list[tuple[str, str]]
) -> None:
    path = write(tmp_path / "train.tsv", "".join(f"{label}\t{text} x\n" for text, label in rows))
    report = check([path], columns=[2, 1], limits=Limits(places=3))
    seen = [text for text, _ in rows]
    under = {text: {label for other, label in rows if other == text} for text in seen}
    wanted = {
        "duplicate": [i for i, text in enumerate(seen, 1) if text in seen[: i - 1]],
        "contradiction": [i for i, text in enumerate(seen, 1) if len(under[text]) > 1],
    }
    for code, lines in wanted.items():
        found = [one for one in report.findings if one.code == code]
        assert sum(one.count for one in found) == len(lines)
        assert [place.line for one in found for place in one.places] == lines[:3]


@given(st.lists(st.integers(0, 9)), st.integers(1, 4))
def test_repeated_digests_are_found_across_chunks(numbers: list[int], size: int) -> None:
    counts = Counter(numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "CHUNK", size)
        found, count = find_repeats(as_digests(array("Q", sorted(numbers))))
    assert found.tolist() == sorted(number for number, times in counts.items() if times > 1)
    assert count == len(numbers) - len(counts)


@quick
@given(
    st.lists(st.text("abc d", min_size=1).filter(str.strip), min_size=1),
    st.lists(st.text("abc de", min_size=1).filter(str.strip), min_size=1),
)
def test_unknown_words_are_counted_as_they_run(
    tmp_path: Path, train: list[str], test: list[str]
) -> None:
    paths = [
        write(tmp_path / "train.txt", "\n".join(train)),
        write(tmp_path / "test.txt", "\n".join(test)),
    ]
    seen = {word for text in train for word in text.split()}
    running = [word for text in test for word in text.split()]
    wanted = sum(word not in seen for word in running) / len(running)
    assert check(paths).summary["test"].unknown_words == pytest.approx((wanted,))


def test_words_of_scripts_without_spaces_count_one_by_one() -> None:
    assert len(WORD.findall("今日は good day, café 2")) == 3 + 4


MARKS = [b"\r", b"\n", b"\r\n", b"\t", b",", b'"', b"\x00", b"\xff", b"\xef\xbb\xbf", b" ", b"{"]
WORDS = [b"0", b"1", b"label,text", b"en\tfr", b"a\tb", b"x" * 2000, "é\u2028\x85".encode()]
# What each format should look like, its first piece first.
SOUND = {
    "tsv": [b"0\tgood film\n", b"1\tbad film\r\n", b"1\tno end\n", b"\n", b"0\t \n"],
    "csv": [b"label,text\n", b"0,so\r\n", b'1,"so\nso"\n', b'1,"x ""y"""\n', b"\n", b",none\n"],
    "jsonl": [b'{"text": "a", "label": 1}\n', b'{"text": "b", "label": 0}\n', b"\n", b"{}\n"],
    "txt": [b"a line\r", b"b\r\n", b"\n", b"c\td e\n"],
}
SOUND["txt.gz"] = SOUND["en"] = SOUND["txt"]
ODD = [b'{"text": "\\ud800", "label": 1}\n', b'{"text": 3}\n', b"[]\n"]
PIECES = st.sampled_from([*MARKS, *WORDS, *ODD, *(one for some in SOUND.values() for one in some)])
BROKEN = st.binary(max_size=40) | st.lists(PIECES, max_size=25).map(b"".join)


def sound(suffix: str) -> st.SearchStrategy[bytes]:
    first, *_ = pieces = SOUND[suffix]
    bodies = st.lists(st.sampled_from(pieces[1:]), max_size=8).map(b"".join)
    return bodies.map(lambda body: first + body)


@quick
@given(
    st.data(),
    st.sampled_from(list(SOUND)),
    st.sampled_from([None, "translate", "classify", "generate"]),
    st.sampled_from(["line", "document", "file"]),
)
def test_what_the_doctor_passes_can_be_read(
    tmp_path: Path, data: st.DataObject, suffix: str, task: str | None, unit: str
) -> None:
    contents = data.draw(st.lists(sound(suffix) | BROKEN, min_size=1, max_size=3))
    names = [f"{stem}.{suffix}" for stem in ("train", "dev", "other")]
    if suffix == "en":
        names = ["train.en", "train.fr", "train.de"]
    paths = [
        write(tmp_path / name, gzip.compress(content) if suffix.endswith("gz") else content)
        for name, content in zip(names, contents, strict=False)
    ]
    report = check(paths, task=task, unit=unit)
    json.loads(report.to_json())
    Console(file=io.StringIO(), width=60).print(render_report(report))
    if not report.ok:
        return
    assert report.task is not None
    like: Corpus | None = None
    for split in report.summary.values():
        like = open_corpus(split.files, task=report.task, unit=unit, like=like)
        read = list(like.usable_records())
        assert len(read) == split.kept > 0
        assert split.kept + sum(split.dropped.values()) == split.records
        if report.task == "classify":
            assert set(like.labels()) <= set(report.summary["train"].labels)


@quick
@given(
    BROKEN,
    st.sampled_from(["tsv", "csv", "jsonl", "txt", "txt.gz"]),
    st.sampled_from(["translate", "classify", "generate"]),
)
def test_reading_breaks_only_with_an_error_to_mend(
    tmp_path: Path, content: bytes, suffix: str, task: str
) -> None:
    path = write(tmp_path / f"a.{suffix}", content)
    trouble: HeedError | None = None
    faults = 0
    try:
        corpus = open_corpus([path], task=task)
        faults = sum(record.fault is not None for record in corpus.scan())
        list(corpus)
    except HeedError as error:
        trouble = error
    assert str(path) in str(trouble) if trouble else not faults


def test_examine_takes_open_splits(tmp_path: Path) -> None:
    train = open_corpus([labeled(tmp_path / "a.tsv", ["0", "1"] * 3)], task="classify")
    dev = open_corpus([labeled(tmp_path / "b.tsv", ["0", "1"])], task="classify", like=train)
    report = examine({"train": train, "dev": dev})
    assert report.summary["dev"].in_train == 2
    assert report.seen["dev"].tolist() == find_overlap(train.usable_records(), dev.usable_records())
    assert Counter(one.severity for one in report.findings)["error"] == 0


def test_a_person_and_a_program_can_read_the_report(tmp_path: Path) -> None:
    sides = [write(tmp_path / "a.en", "[red]a\n\n\n"), write(tmp_path / "a.fr", "b\nc\n")]
    report = check(sides)
    page = io.StringIO()
    Console(file=page, width=200).print(render_report(report))
    assert "a.en:2" in page.getvalue()
    assert "not ready for training" in page.getvalue()
    severities = [one.severity for one in report.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    result = json.loads(report.to_json())
    assert result["findings"][0]["places"][0] == {"path": str(sides[0]), "line": 3}
    assert result["summary"]["train"]["dropped"] == {"empty": 1}


REVIEWS = [
    ("1", "a fine and funny film about two friends"),
    ("0", "nothing happens, and it happens slowly"),
    ("1", "warm, quick and well played by everyone"),
    ("0", "the plot has no end that anyone would wait for"),
]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_csv_without_a_header_keeps_its_first_row(tmp_path: Path, order: tuple[int, int]) -> None:
    rows = [",".join(f'"{row[i]}"' for i in order) + "\n" for row in REVIEWS]
    path = write(tmp_path / "train.csv", "".join(rows))
    found = find(check([path]), "unreadable")
    assert "data.header=false" in found.message
    with pytest.raises(DataError, match="first row seems to be an example"):
        open_corpus([path], task="classify")
    assert check([path], header=False).summary["train"].records == len(REVIEWS)
    assert check([path], header=True).summary["train"].records == len(REVIEWS) - 1
    named = write(tmp_path / "named.csv", "mood,remark\n" + "".join(rows))
    assert check([named], task="classify").summary["train"].records == len(REVIEWS)


def test_a_sentence_is_no_column_name(tmp_path: Path) -> None:
    sentences = [("So it goes.", "Ainsi va la vie."), ("Go home now!", "Rentre maintenant !")]
    path = write(tmp_path / "train.csv", "".join(f"{a},{b}\n" for a, b in sentences))
    assert "is a sentence" in find(check([path], task="translate"), "unreadable").message
    languages = write(tmp_path / "languages.csv", f"en,fr\n{path.read_text()}")
    assert check([languages]).summary["train"].records == len(sentences)


def test_a_header_read_as_an_example_is_pointed_out(tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{label}\n" for label, text in REVIEWS)
    path = write(tmp_path / "train.tsv", f"remark\tmood\n{rows}")
    found = find(check([path]), "header")
    assert "data.header=true" in found.message
    assert found.places == (Place(str(path), 1),)
    assert check([path], header=True).summary["train"].records == len(REVIEWS)
    assert "header" not in codes(check([path], header=True))


def sides(
    folder: Path, split: str, count: int, *, start: int = 0, names: str = "en fr"
) -> list[Path]:
    pairs = [
        (f"this is sentence {i} here", f"voici donc la phrase {i} ici")
        for i in range(start, start + count)
    ]
    return [
        write(folder / f"{split}.{suffix}", "".join(f"{pair[side]}\n" for pair in pairs))
        for side, suffix in enumerate(names.split())
    ]


def test_swapped_sides_are_an_error(tmp_path: Path) -> None:
    train, dev = sides(tmp_path, "train", 40), sides(tmp_path, "dev", 10, start=40)
    assert check([*train, *dev]).ok
    assert find(check([*train, *dev[::-1]]), "swapped-sides", "dev").severity == "error"
    plain = sides(tmp_path, "train", 40, names="src tgt") + sides(
        tmp_path, "dev", 10, start=40, names="tgt src"
    )
    assert check(plain).ok, "only the names are exchanged"
    swapped = check([*plain[:2], *plain[:1:-1]])
    assert find(swapped, "swapped-sides", "dev").severity == "error"


def test_another_language_is_an_error(tmp_path: Path) -> None:
    train = sides(tmp_path, "train", 40)
    other = sides(tmp_path, "dev", 10, names="en de")
    assert ".de" in find(check([*train, *other]), "language", "dev").message
    greek = [
        sides(tmp_path, "test", 10, names="src tgt")[0],
        write(tmp_path / "test.tgt", "αυτή είναι μια πρόταση\n" * 10),
    ]
    corpora = {
        "train": open_corpus(train, task="translate"),
        "test": open_corpus(greek, task="translate"),
    }
    assert "Greek" in find(examine(corpora), "language", "test").message
    corpora = {"train": corpora["train"], "mine": corpora["test"]}
    assert find(examine(corpora), "language", "mine").severity == "warning", "a set of one's own"


def test_a_language_by_its_words(tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", "the cat sat on the mat\n" * 4000)
    dev = write(tmp_path / "dev.txt", "die Katze lag auf einer Matte\n")
    assert "100 % of its words" in find(check([train, dev]), "language", "dev").message


def test_files_that_do_not_pair_up_are_no_texts_of_one_language(tmp_path: Path) -> None:
    english, french = sides(tmp_path, "train", 3)
    german = write(tmp_path / "val.de", "eins\n")
    for files in ([english, german], [english, french, german]):
        message = find(check(files), "unreadable", "").message
        assert "val.en" in message
        assert "--task generate" in message
    assert check([english, german], task="generate").summary.keys() == {"train", "dev"}


PLAY = "FIRST:\nWho goes there at this hour,\nand what is the noise about?\n\n"


def test_a_play_is_hinted_to_be_more_than_its_lines(tmp_path: Path) -> None:
    play = write(tmp_path / "play.txt", PLAY * 30)
    assert "data.unit=document" in find(check([play]), "unit").message
    assert "unit" not in codes(check([play], unit="document"))
    sentences = write(tmp_path / "lines.txt", "One sentence.\nAnother one.\n" * 30)
    assert "unit" not in codes(check([sentences]))
    paragraphs = write(tmp_path / "paragraphs.txt", "A paragraph in one line.\n\n" * 30)
    assert "unit" not in codes(check([paragraphs]))


def test_a_table_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    empty = find(check([write(tmp_path / "empty.tsv", "")]), "unreadable").message
    latin = find(check([write(tmp_path / "latin.tsv", b"caf\xe9\tgood\n")]), "unreadable").message
    assert "no text" in empty
    assert "latin.tsv:1:4" in latin
    assert "UTF-8" in latin
    assert "heed check" not in empty + latin


def test_a_report_on_long_paths_is_legible_at_80_columns(tmp_path: Path) -> None:
    """The folder is printed once; every place stands whole on its line."""
    folder = tmp_path / "a-folder-with-a-rather-long-name" / "and-another-one-inside-of-it"
    folder.mkdir(parents=True)
    path = write(folder / "train.txt", "one line\n<b>two</b>\nthree\x00\n")
    report = check([path])
    screen = Console(file=io.StringIO(), width=80, color_system=None)
    screen.print(render_report(report))
    assert isinstance(screen.file, io.StringIO)
    lines = [line.strip() for line in screen.file.getvalue().splitlines()]
    assert {"train.txt:2", "train.txt:3"} <= {*lines}
    assert max(map(len, lines)) <= 80
    assert screen.file.getvalue().replace("\n", "").count(folder.name) == 1
