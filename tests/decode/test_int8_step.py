"""Blocks in C with int8 weights: what the plain blocks compute with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FEW, VARIANTS, VOCAB, new_language_model, new_translator, texts, tiny
from torch import Tensor, nn

from heed.data.batching.padding import pad_sequences
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.int8_step import Int8Step, pack_stack
from heed.decode.model_step import TransformerStep
from heed.decode.search import Search
from heed.decode.state import DecodeState
from heed.decode.strategy import Strategy
from heed.errors import HeedWarning
from heed.models import LanguageModel, Translator, build
from heed.nn.kernels import c_library, int8_blocks
from heed.nn.kernels.int8_blocks import best_tokens, int8_library
from heed.nn.kernels.quantized_linear import Int8Weights
from heed.nn.stack import Stack
from heed.nn.tokens import Tokens
from heed.probe.patch import ZERO, edit_attention, list_heads

pytestmark = pytest.mark.skipif(
    int8_library() is None, reason="needs a CPU with AVX-512 VNNI and a C compiler"
)
LENGTHS = (5, 1, 8, 3, 2, 6, 7)
STRATEGIES = pytest.mark.parametrize("how", [Greedy(), Beam(3, nbest=3)], ids=["greedy", "beam"])
SERVED = {f"{name}-concat" for name in ("sinusoidal", "learned", "alibi", "t5", "rope", "none")}
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu")


class Compared(list[tuple[Tensor, Tensor]]):
    """The logits of every step: by the kernel, and by the plain blocks with the same weights."""

    def check(self) -> None:
        """Nearly all are equal; a number on the edge may be rounded to the next integer."""
        for found, plain in self:
            difference = (found - plain).abs() / plain.std().clamp_min(1e-3)
            assert float(difference.median()) < 1e-3
            assert float(difference.max()) < 0.3


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """All steps in C are compared with the plain ones, on the same decode state."""
    steps, in_c = Compared(), Int8Step.next_logits

    def compare(
        self: Int8Step, state: DecodeState, *, with_attention: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.decoder is None:
            return in_c(self, state, with_attention=with_attention)
        plain, _ = TransformerStep.next_logits(self, state, with_attention=with_attention)
        cells = {name: x.clone() for name, x in state.tensors.items() if ".self." in name}
        logits, attention = in_c(self, state, with_attention=with_attention)
        left = ~state["done"]  # the kernel skips the attention of finished inputs
        for name, x in cells.items():  # it writes the same keys and values
            torch.testing.assert_close(state[name][left], x[left], atol=0.1, rtol=0.1)
        steps.append((logits[left], plain[left]))
        return logits, attention

    monkeypatch.setattr(Int8Step, "next_logits", compare)
    return steps


def library() -> CDLL:
    kernels = int8_library()
    assert kernels is not None
    return kernels


def int8_step(model: Translator, weights: Int8Weights) -> Int8Step:
    return Int8Step(model, 0, weights, library())


def stacks(model: Translator | LanguageModel) -> list[nn.Module]:
    return [model.encoder, model.decoder] if isinstance(model, Translator) else [model.stack]


def is_served(model: Translator | LanguageModel) -> bool:
    """Whether the kernels serve all stacks of a model."""
    weights, parts = Int8Weights([model]), stacks(model)
    return all(isinstance(x, Stack) and pack_stack(x, weights) is not None for x in parts)


def test_usual_models_are_served_and_others_are_not() -> None:
    served = {name for name in FEW if is_served(new_translator(**VARIANTS[name]))}
    assert served == SERVED | {"grouped", "post", "wide-heads"}
    assert not is_served(new_translator(merge="shift"))
    assert is_served(new_translator(merge="shift", merge_when="training"))
    assert not is_served(new_translator(position="rope", cross_position=True))
    for activation in ACTIVATIONS:
        assert is_served(new_translator(activation=activation))


@STRATEGIES
@pytest.mark.parametrize("variant", FEW)
def test_translation_steps_are_the_plain_ones(
    variant: str, how: Strategy, compared: Compared
) -> None:
    model = new_translator(**VARIANTS[variant])
    search = Search([model], how, int8=Int8Weights([model]))
    search.translate([ids.tolist() for ids in texts(LENGTHS)], max_extra=12)
    assert bool(compared) == is_served(model)
    compared.check()


@STRATEGIES
@pytest.mark.parametrize("variant", FEW)
def test_generation_steps_are_the_plain_ones(
    variant: str, how: Strategy, compared: Compared
) -> None:
    """Prompts of several lengths are at several positions."""
    model = new_language_model(**VARIANTS[variant])
    search = Search([model], how, int8=Int8Weights([model]))
    search.generate([ids.tolist() for ids in texts([4, 1, 9, 2])], max_tokens=20)
    assert bool(compared) == is_served(model)
    compared.check()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_every_activation_and_norm(
    activation: str, norm: str, place: str, compared: Compared
) -> None:
    model = new_translator(activation=activation, norm=norm, norm_place=place, bias=norm == "layer")
    search = Search([model], Greedy(), int8=Int8Weights([model]))
    search.translate([ids.tolist() for ids in texts(LENGTHS)], max_extra=4)
    assert compared
    compared.check()


@settings(max_examples=25, deadline=None)
@given(
    heads=st.sampled_from([1, 2, 3]),
    head_width=st.sampled_from([2, 16, 18, 32, 40, 64, 80]),
    width=st.sampled_from([4, 30, 64, 70]),
    hidden=st.integers(2, 150),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    position=st.sampled_from(["rope", "t5", "sinusoidal"]),
)
def test_sources_of_any_shape(
    heads: int, head_width: int, width: int, hidden: int, lengths: list[int], position: str
) -> None:
    """The encoder in C is the plain one, without padding; padding has zeros."""
    model = new_translator(
        heads=heads,
        head_width=head_width,
        width=width,
        feed_forward=hidden,
        position=position,
        max_positions=100,
    )
    int8 = Int8Weights([model])
    ids, real = pad_sequences([x.numpy() for x in texts(lengths)], max(lengths), 0)
    tokens, step = Tokens.of(ids, mask=real), int8_step(model, int8)
    with torch.inference_mode(), int8.in_use():
        plain, found = model.encode(ids, tokens).x_bnw, step.encode(ids, tokens)
    assert not found[~real].any()
    Compared([(found[real], plain[real])]).check()


@pytest.mark.parametrize("position", ["rope", "t5", "alibi"])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_pruned_layers(position: str, kv_heads: int | None, compared: Compared) -> None:
    """Layers have other numbers of heads, and the biases of those that were kept."""
    kept = {"encoder": [[4], [1, 3]], "decoder": [[2], [1, 3]], "cross": [[1, 2, 3, 4], [3]]}
    changes: dict[str, Any] = {"position": position, "kv_heads": kv_heads}
    translator = new_translator(kept_heads=kept, **changes)
    weights = Int8Weights([translator])
    search = Search([translator], Beam(2), int8=weights)
    search.translate([ids.tolist() for ids in texts(LENGTHS)], max_extra=6)
    writer = new_language_model(kept_heads={"decoder": kept["decoder"]}, **changes)
    search = Search([writer], Beam(2), int8=Int8Weights([writer]))
    search.generate([ids.tolist() for ids in texts([4, 1, 9, 2])], max_tokens=6)
    assert {len(found) for found, _ in compared} >= {4, len(LENGTHS)}
    ids = torch.stack(texts([9, 9]))
    with torch.inference_mode(), weights.in_use():
        plain = translator.encode(ids, Tokens.of(ids)).x_bnw
        found = int8_step(translator, weights).encode(ids, Tokens.of(ids))
    compared.append((found, plain))
    compared.check()


def test_a_source_of_another_vocabulary() -> None:
    """Its vectors are those of its own table."""
    torch.manual_seed(0)
    model = build("translate", tiny(), vocab=VOCAB, source_vocab=2 * VOCAB).eval()
    assert isinstance(model, Translator)
    int8 = Int8Weights([model])
    ids = torch.arange(2 * VOCAB)[None]
    with torch.inference_mode(), int8.in_use():
        plain = model.encode(ids, Tokens.of(ids)).x_bnw
        found = int8_step(model, int8).encode(ids, Tokens.of(ids))
    Compared([(found, plain)]).check()


def test_edited_heads_take_the_plain_steps() -> None:
    """The kernels know nothing of an edit."""
    model = new_translator()
    search = Search([model], Greedy(), int8=Int8Weights([model]))
    sources = [ids.tolist() for ids in texts([5, 3])]
    (step,) = search.model_steps
    assert isinstance(step, Int8Step)
    assert step.decoder is not None
    assert not step.decoder.has_head_edits()
    before = search.translate(sources, max_extra=5)
    with edit_attention(model, dict.fromkeys(list_heads(model), ZERO)):
        assert step.decoder.has_head_edits()
        edited = search.translate(sources, max_extra=5)
    assert [[h.score for h in one] for one in edited] != [[h.score for h in one] for one in before]
    assert search.translate(sources, max_extra=5) == before


def test_threads_do_not_share_their_memory() -> None:
    """Batches that are decoded side by side have the results of one after the other."""
    model = new_translator(width=64, head_width=16)
    sources = [ids.tolist() for ids in texts([n % 30 + 1 for n in range(160)])]
    search = Search([model], Greedy(), batch_size=8, int8=Int8Weights([model]))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = search.translate(sources, max_extra=8)
        torch.set_num_threads(4)
        assert all(search.translate(sources, max_extra=8) == alone for _ in range(3))
    finally:
        torch.set_num_threads(threads)


# ------------------------------------------------------------------------------ choice of tokens


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 5),
    vocabulary=st.integers(1, 80),
    levels=st.sampled_from([2, 1000]),
    seed=st.integers(0, 999),
)
def test_the_best_token_and_its_probability(
    rows: int, vocabulary: int, levels: int, seed: int
) -> None:
    """The first of equal ones; tokens that are never generated count nothing."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (rows, vocabulary), generator=generator) / levels * 20 - 10
    logits[:, vocabulary // 2 + 1 :: 3] = -torch.inf
    tokens, logprobs = best_tokens(library(), logits[:, None])
    assert tokens.shape == logprobs.shape == (rows, 1)
    expected = [row.tolist().index(row.max()) for row in logits]
    assert tokens[:, 0].tolist() == expected
    exact = logits.double().log_softmax(dim=1)[range(rows), expected]
    torch.testing.assert_close(logprobs[:, 0].double(), exact, atol=2e-6, rtol=1e-6)


def test_nan_is_no_probability() -> None:
    logits = torch.zeros(2, 20)
    logits[1, 7] = torch.nan
    assert best_tokens(library(), logits)[1].isnan().tolist() == [False, True]


# -------------------------------------------------------------------------------------- compiling


@pytest.fixture
def anew() -> Iterator[None]:
    """The library is looked for again, in this test and after it."""
    int8_library.cache_clear()
    yield
    int8_library.cache_clear()


@pytest.mark.usefixtures("anew")
def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_translator()
    monkeypatch.setattr(c_library, "COMPILERS", ("no-such-compiler",))
    with pytest.warns(HeedWarning, match=r"there is no C compiler \(no-such-compiler\)"):
        int8 = Int8Weights([model])
    assert not int8.packed
    search = Search([model], Greedy(), int8=int8)
    assert type(search.model_steps[0]) is TransformerStep
    assert search.translate([[5, 6]], max_extra=3)[0]


@pytest.mark.usefixtures("anew")
def test_a_failing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_blocks, "FLAGS", ("-mno-such-flag",))
    with pytest.warns(HeedWarning, match="without compiled kernels: .* failed: .*no-such-flag"):
        assert int8_library() is None


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small C source, and a cache folder of its own."""
    monkeypatch.delenv("HEED_KERNEL_CACHE")
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "two.c"
    path.write_text("int two(void) { return 2; }\n", encoding="utf-8")
    return path


def kept_libraries(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "kernels").glob("*.so"))


def test_a_library_is_compiled_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert c_library.load_library(source, ()).two() == 2
    (library,) = kept_libraries(source)
    assert library.stat().st_mode & 0o777 == 0o500
    monkeypatch.setattr(c_library, "_compile", None)
    assert c_library.load_library(source, ()).two() == 2
    assert kept_libraries(source) == [library]


def test_compiled_libraries_may_have_a_folder_of_their_own(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = source.parent / "libraries"
    monkeypatch.setenv("HEED_KERNEL_CACHE", str(folder))
    assert c_library.load_library(source, ()).two() == 2
    assert [path.suffix for path in folder.iterdir()] == [".so"]
    assert not kept_libraries(source)


def test_another_content_is_another_library(source: Path) -> None:
    c_library.load_library(source, ())
    source.write_text("int two(void) { return 22; }\n", encoding="utf-8")
    assert c_library.load_library(source, ()).two() == 22
    c_library.load_library(source, ("-DOTHER",))
    assert len(kept_libraries(source)) == 3


@pytest.mark.parametrize("fault", ["writable", "damaged", "link"])
def test_a_library_of_doubtful_origin_is_compiled_again(source: Path, fault: str) -> None:
    """One that others can write, a link, half a file."""
    c_library.load_library(source, ())
    (library,) = kept_libraries(source)
    content = library.read_bytes()
    library.rename(source.parent / "elsewhere.so")  # it is loaded, and must not change
    if fault == "writable":
        library.write_bytes(content)
        library.chmod(0o722)
    elif fault == "damaged":
        library.write_bytes(content[: len(content) // 2])
        library.chmod(0o500)
    else:
        library.symlink_to(source.parent / "elsewhere.so")
    assert c_library.load_library(source, ()).two() == 2
    (library,) = kept_libraries(source)
    assert not library.is_symlink()
    assert library.stat().st_mode & 0o777 == 0o500


def test_the_folder_of_libraries_may_be_relative(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name without a folder would be looked for among the system's libraries."""
    monkeypatch.chdir(source.parent)
    monkeypatch.setenv("HEED_KERNEL_CACHE", ".")
    assert c_library.load_library(source, ()).two() == 2
    assert list(source.parent.glob("two-*.so"))


def test_a_library_that_cannot_be_loaded_is_compiled_again(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another system, whose C library may be newer than this one's."""
    c_library.load_library(source, ())
    (library,) = kept_libraries(source)
    other = source.parent / "other"
    other.mkdir()
    content = c_library._with_checksum(b"for another system")
    (other / library.name).write_bytes(content)
    (other / library.name).chmod(0o500)
    monkeypatch.setenv("HEED_KERNEL_CACHE", str(other))
    assert c_library.load_library(source, ()).two() == 2
    assert (other / library.name).read_bytes() != content


@pytest.mark.parametrize("loads", [True, False])
def test_nothing_need_be_loaded_from_the_cache(
    loads: bool, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may refuse to load libraries."""
    cache = source.parent / "cache"

    def refuse(path: str) -> CDLL:
        if not loads or Path(path).is_relative_to(cache):
            raise OSError("failed to map segment")
        return CDLL(path)

    monkeypatch.setattr(c_library, "CDLL", refuse)
    if loads:
        assert c_library.load_library(source, ()).two() == 2
        return
    with pytest.raises(c_library.CompilerError, match=r"two\.c cannot be loaded: failed to map"):
        c_library.load_library(source, ())


def test_a_cache_that_cannot_be_written_is_no_error(source: Path) -> None:
    (source.parent / "cache").write_text("a file", encoding="utf-8")
    assert c_library.load_library(source, ()).two() == 2
