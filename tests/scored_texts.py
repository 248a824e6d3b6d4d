"""Text to score: sentences of the generated world, and what two careless systems make of them.

And a small run to evaluate, with the text that it learnt in part.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from evaluating import translator, write_text

from heed.data import synthetic

COUNT = 120


@dataclass(frozen=True)
class Texts:
    """The same sentences: as they were, as they should be, and as two systems wrote them."""

    sources: list[str]
    references: list[str]
    better: list[str]
    worse: list[str]


def careless(texts: list[str], share: float, seed: int) -> list[str]:
    """Each word lost, said twice or swapped with the next, now and then."""
    draw, out = random.Random(seed), []
    for text in texts:
        words = text.split()
        for i in range(len(words) - 1):
            if draw.random() < share:
                words[i], words[i + 1] = words[i + 1], words[i]
        kept = [w for w in words for _ in range(draw.choices((0, 1, 2), (share, 1, share / 2))[0])]
        out.append(" ".join(kept))
    return out


@pytest.fixture(scope="session")
def texts() -> Texts:
    sentences = list(synthetic.sentences("test", COUNT, seed=3))
    french = [s.french for s in sentences]
    english = [s.english for s in sentences]
    return Texts(english, french, careless(french, 0.1, 1), careless(french, 0.13, 2))


@pytest.fixture(scope="session")
def files(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as files: src, ref, ref2, better, worse."""
    folder = tmp_path_factory.mktemp("texts")
    second = careless(texts.references, 0.05, 7)
    for name, lines in (
        ("src", texts.sources),
        ("ref", texts.references),
        ("ref2", second),
        ("better", texts.better),
        ("worse", texts.worse),
    ):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(text: Path, own_cache: None) -> Path:
    return translator(text)
