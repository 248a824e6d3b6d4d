"""A folder that lies about its sizes, or is made to exhaust heed, is refused with one sentence."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.config import ModelConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.trial import find_growth, try_tokenizer
from heed.errors import DataError, HeedError
from heed.export.huggingface import import_model
from heed.models import build, huggingface

WEIGHTS = "model.safetensors"
SHAPE: dict[str, Any] = {
    "layers": 1,
    "width": 16,
    "heads": 2,
    "feed_forward": 32,
    "max_positions": 64,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 in `generate`, a small Marian in `translate`."""
    folder = tmp_path_factory.mktemp("hf")
    tokenizer = Tokenizer.train(["the cat sees the dog"], kind="char")
    keys: dict[str, dict[str, Any]] = {
        "generate": {"position": "learned", "activation": "gelu_tanh"},
        "translate": {"position": "sinusoidal", "sinusoids": "halves", "norm_place": "post"},
    }
    for task, more in keys.items():
        torch.manual_seed(0)
        model = build(task, ModelConfig(**SHAPE, **more), vocab=tokenizer.vocab_size)
        huggingface.save(model.eval(), tokenizer, folder / task)
    return folder


@pytest.fixture
def generate(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "generate", tmp_path / "model"))


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refuse(folder: Path, match: str) -> None:
    run = folder.parent / "run"
    with pytest.raises(HeedError, match=match) as error:
        import_model(str(folder), run)
    assert len(str(error.value)) < 1000
    assert not run.exists()


def test_the_folder_itself_is_imported(generate: Path) -> None:
    assert "a model to generate" in import_model(str(generate), generate.parent / "run")


@pytest.mark.parametrize("key", ["n_layer", "n_embd", "n_positions", "n_head", "n_inner"])
@pytest.mark.parametrize("size", [10**9, 2**63, 10**30, 999, -1, 0])
def test_sizes_are_checked_before_anything_is_built(generate: Path, key: str, size: int) -> None:
    change_json(generate / "config.json", lambda config: config.update({key: size}))
    refuse(generate, r"config\.json|model")


def test_a_model_larger_than_its_weights_is_not_built(generate: Path) -> None:
    sizes = {"n_layer": 1000, "n_embd": 2**20, "n_inner": 2**20}
    change_json(generate / "config.json", lambda config: config.update(sizes))
    refuse(generate, r"at least [\d,]{15,} parameters, and there are [\d,]+ in the weights")


@pytest.mark.parametrize("number", [2**32 - 1, 1 << 22])
def test_an_id_of_the_vocabulary_is_bounded(generate: Path, number: int) -> None:
    def change(tokenizer: Any) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary[next(reversed(vocabulary))] = number

    change_json(generate / "tokenizer.json", change)
    refuse(generate, "token")


def test_the_beam_of_a_generation_config_is_bounded(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders / "translate", tmp_path / "model"))
    change_json(folder / "generation_config.json", lambda c: c.update({"num_beams": 10**9}))
    refuse(folder, r"model: \[decode\] beam cannot be 1000000000: it is at most 1,000")


@pytest.mark.parametrize("depth", [200, 900, 100_000])
def test_nested_json_is_refused_whether_or_not_python_reads_it(generate: Path, depth: int) -> None:
    """Python reads 900 levels, and newer versions far more, but cannot write them again."""
    text = (generate / "config.json").read_text().rstrip().removesuffix("}")
    (generate / "config.json").write_text(f'{text}, "deep": {"[" * depth}{"]" * depth}}}')
    refuse(generate, "nested too deeply")


@pytest.mark.parametrize("depth", [200, 900, 100_000])
def test_nested_json_beside_a_tokenizer_is_ignored(generate: Path, depth: int) -> None:
    text = f'{{"deep": {"[" * depth}{"]" * depth}}}'
    (generate / "tokenizer_config.json").write_text(text)
    assert "a model to generate" in import_model(str(generate), generate.parent / "run")


def test_a_file_of_holes_is_not_read(generate: Path) -> None:
    side = 2**19
    tensor = {"dtype": "F32", "shape": [side, side], "data_offsets": [0, 4 * side**2]}
    header = json.dumps({"wte.weight": tensor}).encode()
    with (generate / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 4 * side**2)  # a tebibyte, of which nothing is stored
    refuse(generate, r"need 1,024\.0 GiB of memory")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["[" * 200_000, '{"a":' * 200_000, "9" * 10_000, "\udcff", ""])
def test_json_that_no_parser_holds(generate: Path, name: str, content: str) -> None:
    (generate / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    refuse(generate, name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_pipe_is_not_waited_for(generate: Path, name: str) -> None:
    (generate / name).unlink()
    os.mkfifo(generate / name)
    refuse(generate, "not a regular file")


def replacement(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def test_normalizers_that_expand_are_refused(generate: Path) -> None:
    def change(tokenizer: Any) -> None:
        steps = [replacement("a", "a" * 100) for _ in range(30)]
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}

    change_json(generate / "tokenizer.json", change)
    refuse(generate, "its normalizer makes more than 10,000 characters of one")


def test_growth_of_normalizers() -> None:
    assert find_growth(None) == 1.0
    assert find_growth(replacement("aa", "b")) == 1.0
    assert find_growth(replacement("a", "bbb")) == 3.0
    usual = [{"type": "NFKC"}, {"type": "Lowercase"}, replacement(" ", "▁")]
    assert find_growth({"type": "Sequence", "normalizers": usual}) < 100
    assert find_growth({"type": "Prepend", "prepend": "x" * 10**6}) == float("inf")


def test_what_the_library_cannot_read_ends_in_the_child(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in ("{}", "[]", '{"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}'):
        path.write_text(content)
        with pytest.raises(DataError, match="cannot be used"):
            try_tokenizer(path)
