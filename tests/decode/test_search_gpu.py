"""On a GPU captured steps give the results of eager ones and of the CPU."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from decode import ending_models
from support import FEW, texts

from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Hypothesis, Strategy
from heed.models.translator import Translator
from heed.probe.patch import edit_attention, list_heads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

SOURCES = [ids.tolist() for ids in texts([5, 1, 9, 3, 7, 2, 6, 12, 4, 4, 30])]
STRATEGIES: list[Strategy] = [
    Greedy(),
    Beam(4, nbest=4),
    Beam(2, coverage_penalty=0.3, early_stop=True),
    Sample(3, seed=5, top_p=0.9),
]
CAPTURED = [name for name in FEW if not name.startswith("lstm")]
by_name = pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__
)


def on_gpu(variant: str) -> Translator:
    return deepcopy(ending_models.ending_translator(variant)).to("cuda")


def same(
    one: list[list[Hypothesis]], other: list[list[Hypothesis]], tolerance: float = 1e-4
) -> None:
    """Assert equal scores, and equal tokens unless scores are tied."""
    for hypotheses, others in zip(one, other, strict=True):
        assert len(hypotheses) == len(others)
        for x, y in zip(hypotheses, others, strict=True):
            assert abs(x.score - y.score) <= tolerance
        scores = sorted(one.score for one in hypotheses)
        tied = any(b - a <= 2 * tolerance for a, b in pairwise(scores))
        assert tied or [one.ids for one in hypotheses] == [one.ids for one in others]


@by_name
@pytest.mark.parametrize("variant", CAPTURED)
def test_captured_is_eager(variant: str, strategy: Strategy) -> None:
    """The first call captures, the second replays over states that hold old data."""
    model = on_gpu(variant)
    eager = Search([model], strategy, batch_size=8, capture=False).translate(SOURCES)
    search = Search([model], strategy, batch_size=8, capture=True)
    for _ in range(2):
        results = search.translate(SOURCES)
        assert search.capture, "capturing failed and the search continued without it"
        same(results, eager)


@by_name
@pytest.mark.parametrize("variant", FEW)
def test_the_gpu_equals_the_cpu(variant: str, strategy: Strategy) -> None:
    """With the attention kernels of the GPU."""
    expected = Search([ending_models.ending_translator(variant)], strategy).translate(SOURCES)
    same(Search([on_gpu(variant)], strategy).translate(SOURCES), expected, tolerance=1e-3)


def test_language_models_are_captured_too() -> None:
    model = ending_models.ending_language_model("rope-concat")
    prompts = [[2, *source] for source in SOURCES]
    expected = Search([model], Sample(3)).generate(prompts, max_tokens=20)
    search = Search([deepcopy(model).to("cuda")], Sample(3))
    same(search.generate(prompts, max_tokens=20), expected, tolerance=1e-3)
    assert search.capture


def test_graphs_are_kept_from_call_to_call() -> None:
    search = Search([on_gpu("rope-concat")], Beam(3), batch_size=8)
    search.translate(SOURCES)
    states = dict(search._captured)
    search.translate(SOURCES)
    assert search._captured == states


def test_changed_weights_are_read_again() -> None:
    """A search that is reused while its model trains uses the current weights."""
    model = on_gpu("alibi-concat")
    search = Search([model], Greedy(), batch_size=8)
    search.translate(SOURCES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    eager = Search([model], Greedy(), batch_size=8, capture=False)
    same(search.translate(SOURCES), eager.translate(SOURCES))


@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat"])
def test_bfloat16_decodes(variant: str) -> None:
    model = on_gpu(variant).to(torch.bfloat16)
    results = Search([model], Beam(4), batch_size=8).translate(SOURCES)
    assert all(len(hypotheses) == 1 and hypotheses[0].score <= 0 for hypotheses in results)


@pytest.mark.parametrize("edit", ["zero", "previous"])
@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat", "shaw-values"])
def test_an_edit_is_not_bypassed_by_a_captured_step(variant: str, edit: str) -> None:
    """Graphs captured before an edit are not replayed during it, and are used again after it."""
    model, plain = on_gpu(variant), ending_models.ending_translator(variant)
    search = Search([model], Beam(3), batch_size=8)
    before = search.translate(SOURCES)
    edits = dict.fromkeys(list_heads(model)[::2], edit)
    with edit_attention(model, edits), edit_attention(plain, edits):
        edited = search.translate(SOURCES)
        same(edited, Search([plain], Beam(3), batch_size=8).translate(SOURCES), 1e-3)
    assert [r[0].score for r in edited] != [r[0].score for r in before]
    same(search.translate(SOURCES), before)
