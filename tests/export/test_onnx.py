"""The graphs of a model: the same logits at any sizes, step by step, and the same text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from support import (
    ATTENDING,
    VARIANTS,
    apart,
    new_classifier,
    new_language_model,
    padded,
    texts,
    tiny,
    translator,
)
from torch import Tensor

from heed import Translator as Mt
from heed.errors import ConfigError, RunError
from heed.export import export, onnx
from heed.models import Model

CLOSE = 1e-4
LEAKY = {"merge": "reweight", "reweight_over": "sequence", "leaky": True}


def nothing(model: Model, batch: int) -> list[Tensor]:
    """The past of texts that nothing was written of."""
    *_, graph = onnx.graphs(model)
    key_values = graph.inputs["past"]
    return [x[:1, :, :0].expand(batch, -1, -1, -1) for x in key_values]


# ------------------------------------------------------------------- parts, before they are graphs


@pytest.mark.parametrize("variant", ATTENDING)
@torch.inference_mode()
def test_parts_say_what_the_model_does(variant: str) -> None:
    """A source encoded once, a target in steps of any length, for every kind of model."""
    model = translator(variant)
    source, mask = padded(texts([9, 4]), left=[0, 0])
    target = torch.stack(texts([8, 8], seed=1))
    whole = model(source, target, mask=mask)
    cross, past = onnx.Encoder(model)(source, mask), nothing(model, 2)
    at = 0
    for step in (1, 3, 1, 2, 1):
        logits, past = onnx.Decoder(model)(target[:, at : at + step], mask, cross, past)
        assert apart(logits, whole[:, at : at + step]) < 1e-5
        at += step


@torch.inference_mode()
def test_prompts_may_be_padded() -> None:
    """On the left, as prompts of different lengths need it."""
    model = new_language_model(position="alibi")
    prompts, news = texts([6, 2]), texts([2, 2], seed=3)
    ids, mask = padded(prompts, left=[0, 4])
    logits, past = onnx.LanguageModelStep(model)(ids, mask, nothing(model, 2))
    mask = torch.cat([mask, torch.ones(2, 2, dtype=torch.bool)], dim=1)
    after, _ = onnx.LanguageModelStep(model)(torch.stack(news), mask, past)
    for i, (prompt, new) in enumerate(zip(prompts, news, strict=True)):
        alone = model(torch.cat([prompt, new])[None])[0]
        assert apart(logits[i, -1], alone[len(prompt) - 1]) < 1e-5
        assert apart(after[i], alone[-2:]) < 1e-5


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"family": "lstm"}, "model.family"),
        (LEAKY, "model.reweight_over"),
    ],
)
def test_what_a_graph_cannot_hold_is_named(changes: dict[str, Any], key: str) -> None:
    (complaint,) = onnx.find_unsupported(tiny(**changes), causal=True)
    assert complaint.startswith(key)


def test_a_classifier_reads_all_at_once() -> None:
    assert onnx.find_unsupported(tiny(**LEAKY), causal=False) == []
    assert onnx.find_unsupported(tiny(**LEAKY, merge_when="training"), causal=True) == []


# ----------------------------------------------------------------------------------- real graphs


@pytest.fixture(scope="module")
def runtime() -> Any:
    for name in onnx.REQUIRED_PACKAGES:
        pytest.importorskip(name, reason="the extra `onnx` is not installed")
    return pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


class Session:
    """A graph in onnxruntime's hands."""

    def __init__(self, runtime: Any, path: Path) -> None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self.core = runtime.InferenceSession(str(path), options)
        self.names = [one.name for one in self.core.get_inputs()]

    def __call__(self, *inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        flat = [x for one in inputs for x in ([one] if isinstance(one, Tensor) else one)]
        feed = {name: x.numpy() for name, x in zip(self.names, flat, strict=True)}
        return [torch.from_numpy(np.asarray(x)) for x in self.core.run(None, feed)]


@pytest.fixture(scope="module")
def exported(place: Path, runtime: Any) -> Path:
    folder = place / "onnx"
    export(place / "run", folder, to="onnx")
    return folder


@torch.inference_mode()
def test_the_same_logits(exported: Path, place: Path, runtime: Any) -> None:
    """From one token of one text to a padded batch, with and without a past."""
    model = Mt.load(place / "run", device="cpu").model
    encoder, decoder = (Session(runtime, exported / f"{x}.onnx") for x in ("encoder", "decoder"))
    for lengths, step in (([1], 1), ([3, 9], 1), ([12, 1, 5], 4), ([2, 2, 2, 2], 8)):
        source, mask = padded(texts(lengths), left=[0] * len(lengths))
        target = torch.stack(texts([8] * len(lengths), seed=1))
        whole, cross = model(source, target, mask=mask), encoder(source, mask)
        past = nothing(model, len(lengths))
        for at in range(0, 8, step):
            logits, *past = decoder(target[:, at : at + step], mask, cross, past)
            assert (logits - whole[:, at : at + step]).abs().max() < CLOSE


def test_the_same_text(exported: Path, place: Path, runtime: Any, sentences: list[str]) -> None:
    """Greedy decoding by onnxruntime and the tokenizers library, and nothing of heed."""
    config = json.loads((exported / "config.json").read_text())
    core = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
    encoder, decoder = (Session(runtime, exported / f"{x}.onnx") for x in ("encoder", "decoder"))
    begin, end = config["ids"]["bos"], config["ids"]["eos"]
    shape = (1, config["kv_heads"], 0, config["head_width"])
    written = []
    for line in sentences[:25]:
        ids = core.encode(line, add_special_tokens=False).ids
        source = torch.tensor([[*ids, end]])
        mask = torch.ones_like(source, dtype=torch.bool)
        cross, past = encoder(source, mask), [torch.zeros(shape)] * 2 * config["layers"]
        last, found = begin, []
        for _ in range(2 * len(ids) + 10):
            logits, *past = decoder(torch.tensor([[last]]), mask, cross, past)
            last = int(logits[0, -1].argmax())
            if last == end:
                break
            found.append(last)
        written.append(core.decode(found))
    own = Mt.load(place / "run", device="cpu").translate(sentences[:25], beam=1)
    assert [" ".join(text.split()) for text in written] == own


def test_the_program_of_the_docs(
    exported: Path, place: Path, as_documented: Callable[[int, Path], str]
) -> None:
    mt = Mt.load(place / "run", device="cpu")
    assert as_documented(1, exported) == mt.translate(["The old woman sees the cat."], beam=1)[0]


@torch.inference_mode()
def test_a_language_model_and_a_classifier(tmp_path: Path, runtime: Any) -> None:
    """The same for what reads, and for what writes on from prompts."""
    changes = VARIANTS["modern"] | {"layers": 1}
    writer, reader = new_language_model(**changes), new_classifier(position="t5", layers=1)
    sessions: list[Session] = []
    for model in (writer, reader):
        (graph,) = onnx.graphs(onnx.make_exportable(model))
        path = tmp_path / f"{len(sessions)}.onnx"
        onnx.save(graph, path)
        sessions.append(Session(runtime, path))
    ids = torch.stack(texts([7, 7, 7]))
    whole, past, mask = writer(ids), nothing(writer, 3), torch.ones_like(ids, dtype=torch.bool)
    for first, last in ((0, 4), (4, 5), (5, 7)):
        logits, *past = sessions[0](ids[:, first:last], mask[:, :last], past)
        assert (logits - whole[:, first:last]).abs().max() < CLOSE
    for lengths in ([1], [5, 2, 11]):
        ids, mask = padded(texts(lengths), left=[0] * len(lengths))
        (logits,) = sessions[1](ids, mask)
        assert (logits - reader(ids, mask=mask)).abs().max() < CLOSE


def test_what_is_not_for_onnx_is_refused(place: Path, tmp_path: Path, runtime: Any) -> None:
    with pytest.raises(ConfigError, match="quantize"):
        export(place / "run", tmp_path / "mine", to="onnx", quantize="int8")
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "REQUIRED_PACKAGES", ("nothing_of_that_name",))
    with pytest.raises(RunError, match=r"pip install '\.\[onnx\]'"):
        export(place / "run", tmp_path / "mine", to="onnx")
