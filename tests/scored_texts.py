"""Fixtures: generated sentences with the output of two noisy systems, and a small run."""

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
    """Sources, references, and the output of two systems."""

    sources: list[str]
    references: list[str]
    better: list[str]
    worse: list[str]


def add_noise(texts: list[str], share: float, seed: int) -> list[str]:
    """Drop, repeat or swap words at random."""
    draw, out = random.Random(seed), []
    for text in texts:
        words = text.split()
        for i in range(len(words) - 1):
            if draw.random() < share:
                words[i], words[i + 1] = words[i + 1], words[i]
        noisy = [w for w in words for _ in range(draw.choices((0, 1, 2), (share, 1, share / 2))[0])]
        out.append(" ".join(noisy))
    return out


@pytest.fixture(scope="session")
def texts() -> Texts:
    sentences = list(synthetic.generate_sentences("test", COUNT, seed=3))
    french = [s.french for s in sentences]
    english = [s.english for s in sentences]
    return Texts(english, french, add_noise(french, 0.1, 1), add_noise(french, 0.13, 2))


@pytest.fixture(scope="session")
def files(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts as files: src, ref, ref2, better, worse."""
    folder = tmp_path_factory.mktemp("texts")
    second = add_noise(texts.references, 0.05, 7)
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
