"""A bidirectional model translates both ways; a model of one direction refuses."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from support import new_translator
from typer.testing import CliRunner

from heed.api import Translator
from heed.cli.main import app
from heed.config import Recipe
from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.decode.alignment import soft_alignments
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.errors import ConfigError
from heed.train import run as train_run

LETTERS = "abcde"


SMALL = {"layers": 1, "width": 32, "heads": 2, "dropout": 0.0, "position": "sinusoidal"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learnt to turn small letters into capitals, and back."""
    folder, draw = tmp_path_factory.mktemp("run"), random.Random(0)
    lines = [" ".join(draw.sample(LETTERS, draw.randint(2, 3))) for _ in range(300)]
    (folder / "a.en").write_text("\n".join(lines))
    (folder / "a.fr").write_text("\n".join(line.upper() for line in lines))
    recipe = Recipe.of(
        {
            "data": {"train": [str(folder / "a.en"), str(folder / "a.fr")], "bidirectional": True},
            "tokenizer": {"kind": "word"},
            "model": SMALL,
            "train": {"steps": 250, "batch_size": 32, "lr": 1e-2, "warmup": 20, "log_every": 100},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        train_run.start(recipe, folder / "run", device="cpu", console=Console(file=io.StringIO()))
    return folder / "run"


def test_it_translates_both_ways(run: Path) -> None:
    translator = Translator.load(run, device="cpu")
    small, large = ["a b c", "d e", "e c a"], ["A B C", "D E", "E C A"]
    assert translator.translate(small) == large
    assert translator.translate(large, reverse=True) == small
    assert translator.translate(large, reverse=True, beam=3) == small
    assert list(translator.stream(large, reverse=True)) == small


def test_alignments_are_those_of_the_direction(run: Path) -> None:
    translator = Translator.load(run, device="cpu")
    choice = translator.translations(["A B C"], reverse=True, alignments=True)[0].choices[0]
    assert choice.text == "a b c"
    ids = [translator.tokenizer.encode(text) for text in ("A B C", "a b c")]
    [weights] = soft_alignments([translator.model], [(ids[0], ids[1])], begin=EOS)
    [others] = soft_alignments([translator.model], [(ids[0], ids[1])], begin=BOS)
    assert choice.weights is not None
    np.testing.assert_allclose(choice.weights, weights)
    assert (weights != others).any()


def test_the_command_translates_both_ways(run: Path) -> None:
    for text, output, flags in (("A B C", "a b c", ["--reverse"]), ("a b c", "A B C", [])):
        arguments = ["translate", str(run), text, "--device", "cpu", *flags]
        assert CliRunner().invoke(app, arguments).stdout == f"{output}\n"


def test_a_run_of_one_direction_refuses(run: Path) -> None:
    translator = Translator.load(run, device="cpu")
    translator.bidirectional = False
    with pytest.raises(ConfigError, match=r"data\.bidirectional = true"):
        translator.translate(["A"], reverse=True)
    assert translator.translate(["a b"]) == ["A B"]


def test_a_search_begins_with_the_given_token() -> None:
    """Each token is the most probable one after `begin` and the tokens so far."""
    model = new_translator(layers=1)
    source = [7, 12, 9, 20]
    for begin in (BOS, EOS):
        search = Search([model], Greedy(), begin=begin)
        [[output]] = search.translate([source], max_ratio=1.0, max_extra=2)
        so_far = [begin]
        for _ in range(6):
            with torch.inference_mode():
                logits = model(torch.tensor([[*source, EOS]]), torch.tensor([so_far]))
            so_far.append(int(logits[0, -1].argmax()))
            if so_far[-1] == EOS:
                break
        assert output.ids == [token for token in so_far[1:] if token != EOS]
