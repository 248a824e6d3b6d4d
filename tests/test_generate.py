"""Language models through the real commands: training on a stream, judging text, writing it."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killing import dies_at
from rich.console import Console
from test_cli import ROOT, heed
from typer.testing import CliRunner

import heed as package
from heed import LanguageModel
from heed.cli.main import app
from heed.config import DecodeConfig, Recipe
from heed.data import synthetic
from heed.data.tokenizers.special_tokens import EOS, SPECIAL_TOKEN_NAMES
from heed.decode.settings import decode_flags
from heed.errors import ConfigError, DataError, HeedError, make_printable
from heed.evaluate.tables import render_evaluation
from heed.pipelines import line_io
from heed.pipelines.generate import GenerationLines
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.resolve import resolve_recipe as resolved

SMALL: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "dropout": 0.0}
CPU = ("--device", "cpu")
FLOAT = {"precision": "float32"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sentences to learn from, some of which stand in a test set again; a cache of one's own."""
    folder = tmp_path_factory.mktemp("generate")
    learnt = [s.french for s in synthetic.generate_sentences("train", 150, seed=1)]
    fresh = [s.french for s in synthetic.generate_sentences("test", 20, seed=1)]
    for name, lines in {"train": learnt, "near": learnt[:8] + fresh, "far": fresh}.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    labeled = "".join(f"0\t{line} Extraordinaire !\n" for line in fresh)
    (folder / "labeled.tsv").write_text(labeled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        yield folder


def tables(place: Path, **changes: Any) -> dict[str, Any]:
    data = {
        "train": [str(place / "train.txt")],
        "sets": {"near": [str(place / "near.txt")], "far": [str(place / "far.txt")]},
        "max_length": 16,
    }
    sections: dict[str, Any] = {
        "task": "generate",
        "data": data | changes.pop("data", {}),
        "tokenizer": {"kind": "byte"} | changes.pop("tokenizer", {}),
        "model": SMALL | changes.pop("model", {}),
        "train": {"steps": 20, "batch_size": 16, "lr": 0.01, "evaluate_every": 10} | FLOAT,
    }
    sections["train"] |= changes.pop("train", {})
    return sections | changes


def trained(place: Path, name: str, **changes: Any) -> Path:
    recipe = Recipe.of(tables(place, **changes))
    train_run.start(recipe, place / name, device="cpu", console=Console(quiet=True))
    return place / name


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A model of lines, byte by byte."""
    return trained(place, "run")


@pytest.fixture(scope="module")
def model(run: Path) -> LanguageModel:
    found = package.load(run, device="cpu")
    assert isinstance(found, LanguageModel)
    return found


def run_command(*arguments: str) -> str:
    """A command's output, run in this process: a new one takes seconds to start."""
    answer = CliRunner().invoke(app, [*arguments, *CPU], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def refused(*arguments: str) -> str:
    """What is said of a mistake."""
    answer = CliRunner().invoke(app, [*arguments, *CPU])
    assert isinstance(answer.exception, HeedError), answer.output
    return str(answer.exception)


# ------------------------------------------------------------------------------------ judging text


@pytest.fixture(scope="module")
def judged(run: Path) -> dict[str, Any]:
    """What `heed evaluate RUN` says of dev, and beside it of the named sets."""
    result: dict[str, Any] = json.loads(
        run_command("evaluate", str(run), "--bootstrap", "100", "--json")
    )
    return result


def test_a_run_is_judged_on_dev_and_every_named_set(judged: dict[str, Any], place: Path) -> None:
    assert judged["split"] == "dev"
    assert judged["sets"].keys() == {"near", "far"}
    near, far = judged["sets"]["near"], judged["sets"]["far"]
    assert (near["texts"], near["in_train"]) == (28, 8)
    # What is left of one set when train's part is taken away, is the other.
    for key in ("texts", "tokens", "words", "bytes", "loss", "bits_per_byte", "word_perplexity"):
        assert near["clean"][key] == pytest.approx(far[key])
    assert far["bytes"] == (place / "far.txt").stat().st_size
    for result in (judged, near, far):
        assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
        assert result["bits_comparable"]
        for name, span in result["interval"].items():
            assert span["low"] < result[name] < span["high"]


def test_named_sets_are_rows_of_80_columns(judged: dict[str, Any]) -> None:
    """Also with the numbers of a large set: one line each, the set's clean part below it."""
    sets = {"obama": judged["sets"]["near"], "w-bush": judged["sets"]["far"]}
    huge = {key: {"low": 14018.8, "high": 238558.4} for key in ("perplexity", "word_perplexity")}
    sets["w-bush"] = sets["w-bush"] | {"interval": sets["w-bush"]["interval"] | huge}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_evaluation(judged | {"sets": sets}))
    lines = console.export_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("set  "))
    assert "perplexity" in lines[first]
    below = lines[first + 2 :]
    assert [line.split("  ")[0] for line in below[:1]] == ["obama"]
    assert below[1].startswith("  not in train")
    assert below[2].startswith("w-bush")
    assert "[14018.800, 238558.400]" in below[2]
    for name in ("obama", "  not in train", "w-bush"):
        assert sum(line.startswith(name) for line in below) == 3  # a row of each table


def test_every_text_stays_in_the_run_folder(judged: dict[str, Any], run: Path, place: Path) -> None:
    for name, result in {"dev": judged, **judged["sets"]}.items():
        lines = (run / "documents" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        head, *rows = (line.split("\t") for line in lines)
        assert len(rows) == result["texts"]
        columns = dict(zip(head, zip(*rows, strict=True), strict=True))
        tokens = np.array(columns["tokens"], float)
        assert tokens.sum() == result["tokens"]
        total = (tokens * np.array(columns["loss"], float)).sum()
        assert total / tokens.sum() == pytest.approx(result["loss"], abs=1e-3)
    assert columns["text"] == tuple((place / "far.txt").read_text().splitlines())


def test_the_stride_says_how_much_a_token_sees(run: Path, judged: dict[str, Any]) -> None:
    command = ["--split", "far", "--bootstrap", "0", "--json", "--stride"]
    blocks, half = (json.loads(run_command("evaluate", str(run), *command, n)) for n in ("16", "8"))
    assert half["loss"] == judged["sets"]["far"]["loss"] != blocks["loss"]
    trained_with = min(
        line["far"]["loss"] for line in Run(run).metrics() if line["event"] == "evaluate"
    )
    assert blocks["loss"] == pytest.approx(trained_with, rel=1e-4)
    assert "sets" not in half


def test_a_window_longer_than_that_of_training_is_a_result_of_its_own(
    run: Path, model: LanguageModel, place: Path
) -> None:
    command = ("evaluate", str(run), "--split", "far", "--bootstrap", "0", "--json")
    before = json.loads(run_command(*command))
    longer = json.loads(run_command(*command, "--window", "64"))
    named = json.loads(run_command(*command, "--split", "far@window-64"))
    assert (longer["split"], longer["window"]["tokens"]) == ("far@window-64", 64)
    assert named["loss"] == longer["loss"] != before["loss"]
    losses = model.token_losses((place / "far.txt").read_text().splitlines(), window=64)
    assert longer["loss"] == pytest.approx(np.concatenate([one.losses for one in losses]).mean())
    stored = json.loads((run / "evaluation.json").read_text())
    assert stored["far"]["loss"] == before["loss"]
    same = json.loads(run_command(*command, "--window", "16"))  # that of training
    assert (same["split"], same["loss"]) == ("far", before["loss"])
    assert "names no window" in refused(*command, "--split", "far@window-x")
    assert "1 to 0" in refused(*command, "--window", "0")


TEXTS = ["Le chat voit la femme.", "😀 <pad> [bold]", ""]


def test_texts_of_ones_own_token_by_token(run: Path, model: LanguageModel) -> None:
    flags = [part for text in TEXTS for part in ("--text", text)]
    result = json.loads(run_command("evaluate", str(run), *flags, "--json"))
    for text, one, own in zip(
        TEXTS, result["scored_texts"], model.token_losses(TEXTS), strict=True
    ):
        assert one["text"] == text
        assert [token["loss"] for token in one["by_token"]] == pytest.approx(own.losses.tolist())
        assert one["tokens"] == len(one["by_token"]) == len(text.encode()) + 1
        tokens = [token["token"] for token in one["by_token"]]
        assert tokens[-1] == SPECIAL_TOKEN_NAMES[EOS]
        assert one["loss"] == pytest.approx(own.losses.mean())
    shown = run_command("evaluate", str(run), *flags)
    for words in ("Le chat voit la femme.", "[bold]", "probability", "bits per byte"):
        assert words in shown


def test_texts_under_several_runs(run: Path, place: Path, model: LanguageModel) -> None:
    """Perplexity with and without the end token, which the losses of the tokens give."""
    other = place / "copy"
    shutil.copytree(run, other)
    flags = [part for text in TEXTS for part in ("--text", text)]
    result = json.loads(run_command("evaluate", str(run), str(other), *flags, "--json"))
    assert [Path(one["run"]).name for one in result["runs"]] == [run.name, "copy"]
    for one in result["runs"]:
        for text, own in zip(one["scored_texts"], model.token_losses(TEXTS), strict=True):
            inner = own.losses[:-1]
            assert text["perplexity"] == pytest.approx(np.exp(own.losses.mean()))
            if len(inner):
                assert text["without_end"]["perplexity"] == pytest.approx(np.exp(inner.mean()))
            else:
                assert text["without_end"] is None
    shown = run_command("evaluate", str(run), str(other), *flags)
    assert shown.count("without <eos>") == len(TEXTS)
    assert "several runs" in refused("evaluate", str(run), str(other))


def test_without_its_files_a_run_judges_all_the_same(run: Path, place: Path) -> None:
    """Moved away from its text, it says what it cannot know."""
    alone, text = place / "alone", place / "own.txt"
    shutil.copytree(run, alone)
    lines = (alone / "recipe.toml").read_text().splitlines(keepends=True)
    recipe = "".join(line for line in lines if "checksum" not in line)
    (alone / "recipe.toml").write_text(recipe.replace(str(place), str(place / "gone")))
    assert json.loads(run_command("evaluate", str(alone), "--text", "Le chat", "--json"))[
        "scored_texts"
    ]
    text.write_text("Le chat voit la femme.\n")
    result = json.loads(run_command("evaluate", str(alone), "--test", str(text), "--json"))
    assert result["in_train"] is None
    assert result["texts"] == 1
    assert "cannot be read" in result["overlap_unknown"]


def test_unknown_words_make_bits_incomparable(place: Path) -> None:
    run = trained(place, "words", tokenizer={"kind": "word"}, data={"max_length": 32})
    shown = run_command("evaluate", str(run), "--test", str(place / "far.txt"))
    assert "do not compare with another tokenizer's" in shown
    result = json.loads(
        run_command("evaluate", str(run), "--test", str(place / "far.txt"), "--json")
    )
    assert result["unknown_tokens"] > 0
    assert not result["bits_comparable"]


def test_a_translator_has_no_such_texts(place: Path) -> None:
    recipe = Recipe.of(
        {
            "data": {"train": [str(place / "train.txt"), str(place / "train.txt")]},
            "tokenizer": {"kind": "byte"},
            "model": SMALL,
            "train": {"steps": 1},
        }
    )
    train_run.start(recipe, place / "mt", device="cpu", console=Console(quiet=True))
    assert "for language models" in refused("evaluate", str(place / "mt"), "--text", "Le chat")


# ------------------------------------------------------------------------------------ writing text

WRITE = ("--length", "20", "--seed", "3", "--top-k", "40")


def test_the_same_text_again_alone_or_among_others(run: Path, model: LanguageModel) -> None:
    command = ["generate", str(run), *WRITE, "--json"]
    lines = run_command(
        *command, "--prompt", "Le chat", "--prompt", "née", "--samples", "3"
    ).splitlines()
    results = [json.loads(line) for line in lines]
    assert [(one["prompt"], one["sample"]) for one in results] == [
        (prompt, sample) for prompt in ("Le chat", "née") for sample in range(3)
    ]
    assert json.loads(run_command(*command, "--prompt", "Le chat"))["text"] == results[0]["text"]
    again = model.generate(["Le chat", "née"], length=20, samples=3, seed=3, top_k=40)
    assert [one["text"] for one in results] == [text for several in again for text in several]
    for one in results:
        assert one["text"] == one["prompt"] + one["continuation"]
        assert one["tokens"] == 20 if one["ended"] == "length" else one["tokens"] < 20


def test_the_recipe_s_beam_searches_unless_sampling_is_requested(model: LanguageModel) -> None:
    """And without one, tokens are drawn."""
    recipe = replace(model.recipe, decode=DecodeConfig(beam=3, length_penalty=0.5))
    other = LanguageModel(model.model, model.tokenizer, recipe)
    assert model.pipeline().settings.sample
    assert other.pipeline().settings == recipe.decode
    assert other.generate(["Le"], length=5) == model.generate(
        ["Le"], length=5, beam=3, length_penalty=0.5
    )
    for flags in ({"seed": 1}, {"top_p": 0.9}):
        drawn = other.pipeline(**decode_flags(flags)).settings
        assert (drawn.sample, drawn.beam, drawn.length_penalty) == (True, 1, 0.5)
    assert not model.pipeline(beam=2).settings.sample
    assert not model.pipeline(sample=False).settings.sample


def test_every_way_in(run: Path, model: LanguageModel, place: Path) -> None:
    prompts = ["Le chat", "", "La femme 😀"]
    (place / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
    command = ["generate", str(run), *WRITE]
    by_file = run_command(*command, "--file", str(place / "prompts.txt"))
    flags = [part for prompt in prompts for part in ("--prompt", prompt)]
    assert run_command(*command, *flags) == by_file
    assert (
        run_command("generate", str(run), *prompts[:2], *WRITE, "--prompt", prompts[2]) == by_file
    )
    assert run_command(*command, *flags, "--stream") == by_file
    for by_pipe in ([], ["--file", "-"]):
        answer = heed(*command, *CPU, *by_pipe, stdin="".join(f"{line}\n" for line in prompts))
        assert answer.stdout == by_file, answer.stderr
    out, author = io.BytesIO(), model.pipeline(seed=3, top_k=40)
    nothing = line_io.open_lines(None, Path(os.devnull))
    task = GenerationLines(author, 20)
    line_io.run_lines(line_io.lines_or_default(nothing, ""), task, out=out, warn=print)
    assert out.getvalue().decode() == run_command(*command, "--prompt", "")


def test_stop_strings(run: Path) -> None:
    command = ["generate", str(run), "--prompt", "Le", "--samples", "5", "--length", "60", "--json"]
    free = [json.loads(line) for line in run_command(*command).splitlines()]
    cut = [
        json.loads(line)
        for line in run_command(*command, "--stop", "e", "--stop", "a").splitlines()
    ]
    for before, after in zip(free, cut, strict=True):
        ends = [at for at in map(before["continuation"].find, "ea") if at >= 0]
        assert after["continuation"] == before["continuation"][: min(ends, default=None)]
        assert (after["ended"] == "stop") == bool(ends)
    assert any(one["ended"] == "stop" for one in cut)


def test_a_terminal_sees_it_come(run: Path, model: LanguageModel) -> None:
    """On a terminal text appears as it is written, and no character in two parts."""

    def text(seed: int) -> str:
        return model.generate(["é😀"], length=60, temperature=1.5, seed=seed)[0][0]

    seed = next(seed for seed in range(99) if len(text(seed)) > 30 and not text(seed)[2:].isascii())
    command = ["generate", str(run), "--prompt", "é😀", "--length", "60", "--temperature", "1.5"]
    command += ["--seed", str(seed)]
    whole = run_command(*command, "--no-stream").encode()
    assert whole.decode() == text(seed) + "\n"
    near, far = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "heed", *command, *CPU],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=far,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(far)
        parts: list[bytes] = []
        while part := _read(near):
            parts.append(part)
        assert process.wait(timeout=60) == 0
    os.close(near)
    assert len(parts) > 3
    for part in parts:
        part.decode("utf-8")
    # A terminal writes a line's end as two characters, and gets control characters escaped.
    escaped = make_printable(whole.decode(), multiline=True).encode()
    assert b"".join(parts).replace(b"\r\n", b"\n") == escaped


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side has closed it
        return b""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--length", "0"], "length cannot be 0"),
        (["--temperature", "0"], "temperature cannot be 0"),
        (["--stop", ""], "stop cannot be empty"),
        (["--file", "nowhere"], "no such file"),
    ],
)
def test_bad_flags_are_a_sentence(run: Path, flags: list[str], said: str) -> None:
    given = [] if "--file" in flags else ["--prompt", "Le"]
    assert said in refused("generate", str(run), *given, *flags)


def test_a_prompt_longer_than_learned_positions(place: Path) -> None:
    run = trained(place, "learned", model={"position": "learned"}, train={"steps": 1})
    prompt = "Le chat voit la femme"
    command = ["generate", str(run), "--temperature", "9", "--prompt"]
    assert "21 tokens, but the model has positions for 15" in refused(*command, prompt)
    assert run_command(*command, prompt, "--cut-prompt").startswith(prompt)
    answer = CliRunner().invoke(app, [*command, prompt[:12], *CPU])
    assert answer.stdout.startswith(prompt[:12])
    assert "prompt 1: ended where the model's positions end" in answer.stderr


# -------------------------------------------------------------------------- training on a stream

STREAM = {"unit": "file", "windows": "random", "max_length": 8}


def test_a_stream_resumes_to_the_same_bits(place: Path) -> None:
    changes = {"data": STREAM, "train": {"steps": 12, "checkpoint_every": 5, "evaluate_every": 6}}
    whole = trained(place, "stream", **changes)
    with dies_at(8):
        trained(place, "broken", **changes)
    train_run.resume(place / "broken", device="cpu", console=Console(quiet=True))
    weights = [Run(folder).weights_path.read_bytes() for folder in (whole, place / "broken")]
    assert weights[0] == weights[1]


def test_from_python(place: Path) -> None:
    settings: dict[str, Any] = {
        "kind": "char",
        "unit": "file",
        "windows": "random",
        "max_length": 8,
    }
    model = LanguageModel.train(
        train=[place / "train.txt"],
        run=place / "python",
        device="cpu",
        steps=2,
        **SMALL,
        **settings,
    )
    assert model.recipe.data.windows == "random"
    assert model.generate(length=3)[0][0]


def test_a_streams_dev_set_is_the_end_of_its_file(place: Path) -> None:
    run = trained(place, "ended", data=STREAM, train={"steps": 4, "evaluate_train": True})
    line = next(line for line in Run(run).metrics() if line["event"] == "evaluate")
    assert line.keys() >= {"train", "dev", "near", "far"}
    result = json.loads(run_command("evaluate", str(run), "--stride", "8", "--json"))
    assert (result["split"], result["texts"], result["in_train"]) == ("dev", 1, 0)
    lines = (place / "train.txt").read_text().splitlines(keepends=True)
    assert result["bytes"] == len("".join(lines[-7:]).encode())
    assert result["loss"] == pytest.approx(line["dev"]["loss"], rel=1e-4)
    assert (run / "figures" / "perplexity.png").stat().st_size


def test_a_tokenizer_may_learn_from_more_text(place: Path) -> None:
    more = {"text": [str(place / "labeled.tsv")], "kind": "word", "split": "treebank"}
    run = trained(place, "more", tokenizer=more, train={"steps": 1})
    loaded = package.load(run, device="cpu")
    assert isinstance(loaded, LanguageModel)
    assert loaded.tokenizer.split == "treebank"
    words = loaded.tokenizer.tokenize("Extraordinaire !")
    assert words == ["Extraordinaire", "!"]
    assert "<unk>" not in loaded.tokenizer.tokenize((place / "far.txt").read_text())
    missing = tables(place, tokenizer={"text": ["nowhere.tsv"]})
    with pytest.raises(HeedError, match="no such file"):
        train_run.start(
            Recipe.of(missing), place / "missing", device="cpu", console=Console(quiet=True)
        )
    assert not (place / "missing").exists()


def test_the_folder_of_the_data_is_that_of_the_tokenizers_text(place: Path) -> None:
    (place / "recipe.toml").write_text(
        'task = "generate"\n[data]\ntrain = ["train.txt"]\n[tokenizer]\ntext = ["far.txt"]\n'
    )
    recipe, _ = resolved(str(place / "recipe.toml"), None, None, None, None, None, place)
    assert recipe.tokenizer.text == [str(place / "far.txt")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"pack": True, "windows": "random"}}, "two ways to fill a row"),
        ({"tokenizer": {"split": "treebank"}}, "is for kind 'word'"),
        ({"tokenizer": {"kind": "word", "split": "treebnak"}}, "Did you mean 'treebank'"),
        ({"data": {"windows": "often"}}, "windows cannot be 'often'"),
    ],
)
def test_keys_that_make_no_sense(place: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe.of(tables(place, **changes))


def test_blocks_are_for_language_models(place: Path) -> None:
    sections = tables(place, task="classify", data={"windows": "random"})
    with pytest.raises(ConfigError, match="windows is for causal language models"):
        train_run.start(
            Recipe.of(sections), place / "no", device="cpu", console=Console(quiet=True)
        )


QUICK = ["train.steps=2", "train.warmup=0", "model.width=24", "model.layers=1"]
SPEECHES = ("train_LM", "test_LM_obama", "test_LM_hbush", "test_LM_wbush", "tinyshakespeare")


@pytest.mark.parametrize("name", ["speeches/generate", "speeches/generate-reported", "lm/nano"])
def test_a_shipped_recipe_trains(name: str, place: Path, tmp_path: Path) -> None:
    """On other text in files of the names that it asks for."""
    stories = [s.english for s in synthetic.generate_sentences("train", 80, seed=2)]
    for number, stem in enumerate(SPEECHES):
        text = "\n\n".join(stories[:60] if number in (0, 4) else stories[60:])
        (tmp_path / f"{stem}.txt").write_text(text)
    (tmp_path / "train_CLS.tsv").write_text("".join(f"0\t{line}\n" for line in stories))
    recipe, _ = resolved(name, None, None, None, QUICK, None, tmp_path)
    run = train_run.start(recipe, tmp_path / "run", device="cpu", console=Console(quiet=True))
    assert run.finished


def test_one_text_alone_is_a_sentence(model: LanguageModel) -> None:
    calls: list[Any] = [model.generate, model.token_losses, lambda x: model.generate([""], stop=x)]
    for call in calls:
        for texts, said in (("Hello", "Give a list"), ([None], "text 1 is None")):
            with pytest.raises(DataError, match=said):
                call(texts)
