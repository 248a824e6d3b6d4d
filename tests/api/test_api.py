"""heed from Python and `heed translate`, on small runs trained once by the real thing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from test_cli import ROOT

import heed as package
from heed import LanguageModel, Translator
from heed.api import PIPELINES
from heed.config import DecodeConfig, Recipe
from heed.data import synthetic
from heed.errors import ConfigError, DataError, RunError
from heed.train import run as train_run
from heed.train.python_arguments import train_from_arguments

SMALL = {"layers": 1, "width": 32, "heads": 2, "steps": 150, "lr": 5e-3, "batch_tokens": 512}
NO_TEXTS: list[Any] = [["a", "b"], 5, None, "", "  "]
LINES = ["The cat sees the old woman.", "", "   ", "😀 ok", "The dog.", "\x0c\x1f", "A\u2028B\x85C"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the text is."""
    folder = tmp_path_factory.mktemp("api")
    synthetic.write_corpus(folder, train=300, dev=30, test=30, seed=0)
    return folder


def trained(place: Path, name: str, *, seed: int = 0, **changes: Any) -> Path:
    settings = {"vocab_size": 300, "max_length": 48} | SMALL | changes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(place / "cache"))
        translator = Translator.train(
            train=[place / "train.en", place / "train.fr"],
            dev=[str(place / "dev.en"), str(place / "dev.fr")],
            run=place / name,
            seed=seed,
            device="cpu",
            **settings,
        )
    assert translator.recipe.model.width == 32
    return place / name


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return trained(place, "run")


@pytest.fixture(scope="module")
def another(place: Path) -> Path:
    """With the same tokenizer."""
    return trained(place, "another", seed=1)


@pytest.fixture(scope="module")
def stranger(place: Path) -> Path:
    """With a tokenizer of its own."""
    return trained(place, "stranger", vocab_size=310)


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return Translator.load(run, device="cpu")


# ------------------------------------------------------------------------------------- from Python


def test_one_text_alone_is_a_sentence(translator: Translator) -> None:
    for call in (translator.translate, translator.translations, lambda x: [*translator.stream(x)]):
        ask: Any = call
        for texts, said in (("Hello", "Give a list"), ([None], "text 1 is None")):
            with pytest.raises(DataError, match=said):
                ask(texts)


def test_a_run_loads_as_what_it_is(run: Path, translator: Translator) -> None:
    loaded = package.load(run, device="cpu")
    assert isinstance(loaded, Translator)
    assert loaded.translate(LINES) == translator.translate(LINES)


def test_a_language_model_goes_on_from_its_prompt(place: Path) -> None:
    tables = {
        "task": "generate",
        "data": {"train": [str(place / "train.txt")], "dev": [str(place / "dev.txt")]},
        "model": {"layers": 1, "width": 16, "heads": 2},
        "train": {"steps": 5},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(place / "cache"))
        train_run.start(Recipe.of(tables), place / "lm", device="cpu", console=Console(quiet=True))
    model = package.load(place / "lm", device="cpu")
    assert isinstance(model, LanguageModel)
    quantized = LanguageModel.load(place / "lm", device="cpu", precision="int8")
    assert quantized.generate(["The"], length=5, seed=1)[0][0].startswith("The")
    authors = [weakref.ref(model.pipeline(seed=seed)) for seed in range(9)]
    assert sum(one() is not None for one in authors) == PIPELINES
    prompts = ["The cat", "", "One day the old woman"]
    found = model.generate(prompts, length=7, samples=3, top_k=20)
    assert found == model.generate(prompts, length=7, samples=3, top_k=20)
    for i, (prompt, several) in enumerate(zip(prompts, found, strict=True)):
        assert len(several) == 3
        (alone,) = model.generate([prompt], length=7, samples=3, first=i, top_k=20)
        assert alone == several
    with pytest.raises(RunError, match="not to translate"):
        Translator.load(place / "lm", device="cpu")


@pytest.mark.parametrize("kind", [str, Path])
def test_one_file_needs_no_list(
    place: Path, kind: type[str] | type[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Recipe] = []
    monkeypatch.setattr(train_run, "start", lambda recipe, *_, **__: begun.append(recipe))
    files = {split: kind(place / f"{split}.txt") for split in ("train", "dev", "test")}
    train_from_arguments(
        "generate", files["train"], files["dev"], place / "one", 0, "cpu", {"test": files["test"]}
    )
    data = begun[0].data
    assert {split: [str(file)] for split, file in files.items()} == {
        "train": data.train,
        "dev": data.dev,
        "test": data.test,
    }


def test_a_key_that_no_section_has_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'layers'"):
        Translator.train(train=[place / "train.en", place / "train.fr"], layer=2)


def test_settings_change_how_it_writes(translator: Translator) -> None:
    lines = [line for line in LINES if line.strip()]
    several = translator.translations(lines, beam=3, nbest=3, alignments=True)
    assert [one.text for one in several] == translator.translate(lines, beam=3)
    assert all(len(one.choices) <= 3 for one in several)
    with pytest.raises(ConfigError, match="beam"):
        translator.translate(lines, beam=0)


def test_few_ways_to_write_are_kept(translator: Translator) -> None:
    """Each may hold much of a GPU's memory, so the others are gone as soon as they are left."""
    made = [weakref.ref(translator.pipeline(sample=True, seed=seed)) for seed in range(9)]
    assert [one() is not None for one in made] == [False] * (9 - PIPELINES) + [True] * PIPELINES
    assert made[-1]() is translator.pipeline(sample=True, seed=8)


def test_a_beam_needs_no_word_against_draws(translator: Translator) -> None:
    """A run whose recipe samples can still search, from Python and the command line."""
    recipe = replace(translator.recipe, decode=DecodeConfig(sample=True, seed=1))
    drawing = Translator(translator.model, translator.tokenizer, recipe)
    assert drawing.translate(LINES, beam=2) == translator.translate(LINES, beam=2)
    assert drawing.translate(LINES, beam=1) == translator.translate(LINES)


def test_a_long_text_is_said_to_be_long(translator: Translator) -> None:
    with pytest.warns(UserWarning, match="text 2: longer than this model reads at once"):
        found = translator.translate(["The cat.", "The cat sees the dog. " * 20])
    assert found[1].strip()


def test_a_stream_is_the_same(translator: Translator) -> None:
    lines = ["The cat sees the dog."] * 70 + LINES
    assert list(translator.stream(iter(lines))) == translator.translate(lines)


def test_an_ensemble_of_one_run_is_the_run(run: Path, translator: Translator) -> None:
    """And of a run with itself, too, but for rounding."""
    lines = [line for line in LINES if line.strip()]
    alone = translator.translations(lines)
    twice = Translator.load(run, run, device="cpu").translations(lines)
    for one, other in zip(alone, twice, strict=True):
        assert one.choices[0].score == pytest.approx(other.choices[0].score, abs=1e-4)


def test_runs_form_an_ensemble_if_they_share_a_tokenizer(
    run: Path, another: Path, stranger: Path
) -> None:
    both = Translator.load(run, another, device="cpu")
    assert len(both.translate(LINES)) == len(LINES)
    with pytest.raises(RunError, match="tokenizer differs from that of"):
        Translator.load(run, stranger, device="cpu")


def test_an_ensemble_reads_as_much_as_the_shortest_of_its_models(run: Path, place: Path) -> None:
    """Whichever comes first: what one of them cannot read as one, is read in parts."""
    few: dict[str, Any] = {"max_length": 8, "position": "learned", "max_positions": 8, "steps": 1}
    short = trained(place, "short", **few)
    text = ["The cat sees the dog."]
    assert [one.parts for one in Translator.load(run, device="cpu").translations(text)] == [1]
    for runs in ((run, short), (short, run)):
        (found,) = Translator.load(*runs, device="cpu").translations(text)
        assert found.parts > 1


@settings(max_examples=10)
@given(lines=st.lists(st.text(max_size=30), max_size=5))
def test_any_lines_at_all(translator: Translator, lines: list[str]) -> None:
    found = translator.translations(lines)
    assert [one.source for one in found] == lines
    for one in found:
        assert one.source.strip() or not one.text
        assert one.text == " ".join(one.text.split())


# --------------------------------------------------------------------------------- the command line


def translate(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`heed translate …`, bytes in and bytes out."""
    return subprocess.run(
        [sys.executable, "-m", "heed", "translate", *arguments, "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        input=stdin,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_lines_never_shift(run: Path, translator: Translator) -> None:
    """Emoji, ten thousand words, control characters, right to left, spaces, what is not UTF-8."""
    wild = [
        *(line.encode() for line in LINES),
        b"\xff\xfe\x80 bad",
        "שלום عالم".encode(),
        b"word " * 10000,
        b"\x00\x07\x1b[31m\r",
        b"The cat sees the dog.",
    ]
    answer = translate(str(run), stdin=b"\n".join(wild))
    assert answer.returncode == 0, answer.stderr
    out = answer.stdout.decode().split("\n")[:-1]
    assert len(out) == len(wild)
    assert [
        i for i, line in enumerate(out) if not line and wild[i].decode("utf-8", "replace").strip()
    ] == []
    assert out[1] == out[2] == out[5] == ""
    assert out[-1] == translator.translate(["The cat sees the dog."])[0]
    assert b"line 10: longer than this model reads at once" in answer.stderr


def test_every_way_in_says_the_same(run: Path, another: Path, place: Path) -> None:
    lines = ["The cat sees the dog.", "The old woman."]
    (place / "in.txt").write_text("\n".join(lines) + "\n")
    flags = ["--beam", "2", "--nbest", "2", "--scores", "--alignments", "--with", str(another)]
    ways = [
        translate(str(run), *flags, "--file", str(place / "in.txt")),
        translate(str(run), *flags, stdin="\n".join(lines).encode()),
    ]
    assert all(way.returncode == 0 for way in ways), ways[0].stderr
    assert ways[0].stdout == ways[1].stdout
    rows = [line.split("\t") for line in ways[0].stdout.decode().split("\n")[:-1]]
    assert [len(row) % 3 for row in rows] == [0, 0]
    assert all(float(row[1]) <= 0 for row in rows)
    answer = translate(str(run), *lines, *flags, "--json")
    for line, row in zip(answer.stdout.decode().split("\n"), rows, strict=False):
        result = json.loads(line)
        assert result["translation"] == row[0]
        assert len(result["weights"]) == len(row[0].split())


def test_int8_is_for_decoding_alone(run: Path, another: Path, translator: Translator) -> None:
    """By the command and from Python, in an ensemble too; maps and alignments stay float32's."""
    lines = ["The cat sees the dog.", "The old woman."]
    answer = translate(str(run), *lines, "--precision", "int8", "--with", str(another), "--scores")
    assert answer.returncode == 0, answer.stderr
    rows = [line.split("\t") for line in answer.stdout.decode().split("\n")[:-1]]
    assert [len(row) for row in rows] == [2, 2]
    quantized = package.load(run, device="cpu", precision="int8")
    assert isinstance(quantized, Translator)
    scores = [
        [one.choices[0].score for one in model.translations(lines, beam=2, alignments=True)]
        for model in (quantized, translator)
    ]
    assert scores[0] != scores[1]
    assert scores[0] == pytest.approx(scores[1], abs=0.2)
    maps = [model.attention(lines[0], "Le chat.").get() for model in (quantized, translator)]
    assert np.array_equal(maps[0].weights, maps[1].weights)


def test_samples_come_again(run: Path) -> None:
    flags = ["--sample", "--temperature", "1.5", "--seed", "3", "--nbest", "2"]
    first = translate(str(run), "The cat sees the dog.", *flags)
    assert first.returncode == 0, first.stderr
    assert translate(str(run), "The cat sees the dog.", *flags).stdout == first.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--beam", "0", "--top-p", "2"], "beam"),
        (["--precision", "int4"], "precision cannot be 'int4': use float32 or bf16 or int8."),
        (["--file", "nowhere"], "no such file"),
    ],
)
def test_bad_flags_are_a_sentence(run: Path, flags: list[str], said: str) -> None:
    words = [] if "--file" in flags else ["The cat."]
    answer = translate(str(run), *words, *flags)
    assert answer.returncode == 2
    assert said in answer.stderr.decode()
    assert b"Traceback" not in answer.stderr


@pytest.mark.parametrize(("number", "said"), [(0, b"input is closed"), (1, b"output is closed")])
def test_a_stream_that_is_closed_is_a_sentence(run: Path, number: int, said: bytes) -> None:
    script = (
        "import os, sys\n"
        f"os.close({number})\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'heed', 'translate', *sys.argv[1:]])\n"
    )
    words = ["The cat."] if number else []
    answer = subprocess.run(
        [sys.executable, "-c", script, str(run), *words, "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 2
    assert said in answer.stderr
    assert b"Traceback" not in answer.stderr


def piped(run: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "heed", "translate", str(run), "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_who_waits_is_answered_and_an_interrupt_ends_it(run: Path) -> None:
    with piped(run) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):  # the second line is written when the first is answered
            process.stdin.write(b"The cat sees the dog.\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in said


def test_a_reader_that_leaves_ends_it(run: Path) -> None:
    with piped(run) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"The cat.\n" * 3000)
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == 141
        assert b"Traceback" not in process.stderr.read()


def test_memory_does_not_grow_with_the_input(translator: Translator) -> None:
    """Lines without end, of which a stream holds a few."""

    def endless(count: int) -> int:
        lines = ("The cat." for _ in range(count))
        assert sum(1 for _ in translator.stream(lines)) == count
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = endless(200)
    assert endless(3000) - before < 20_000  # kilobytes


@pytest.mark.parametrize("text", NO_TEXTS)
def test_maps_of_what_is_no_text_are_refused(translator: Translator, text: Any) -> None:
    """A list ended with an AttributeError, and a blank text had a map of its special tokens."""
    with pytest.raises(DataError, match=r"where one text belongs|Give a text that is not blank"):
        translator.attention(text)
    with pytest.raises(DataError, match="there is 5 where one text belongs"):
        translator.hidden("The cat.", 5)  # type: ignore[arg-type]
