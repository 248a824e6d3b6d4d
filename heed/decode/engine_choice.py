"""The choice of the decoding engine: heed's own search, or CTranslate2 where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, RunError, install_hint
from heed.models import Translator

if TYPE_CHECKING:
    from heed.decode.ctranslate2_engine import CTranslate2Engine

HEED = "heed"
ENGINES = (HEED, "ctranslate2")


def check_engine(engine: str, *, models: int = 1) -> None:
    """Raise an error for an unknown engine, one not installed, or one without ensembles."""
    if engine not in ENGINES:
        raise ConfigError([f"engine cannot be {engine!r}: use {' or '.join(ENGINES)}."])
    if engine == HEED:
        return
    if models > 1:
        raise ConfigError([f"{engine} decodes with one model: use engine heed for an ensemble."])
    check_installed(engine)


def check_installed(engine: str) -> None:
    """Raise an error for an engine that is not installed."""
    if find_spec(engine) is None:
        raise RunError(f"{engine} is not installed.", todo=install_hint("ctranslate2"))


def load_engine(
    engine: str,
    model: Translator,
    tokenizer: Tokenizer,
    *,
    max_source: int,
    device: str,
    precision: str,
) -> CTranslate2Engine | None:
    """A model loaded into this engine; None for heed's own search.

    `max_source` is how many tokens a source may have.
    """
    if engine == HEED:
        return None
    from heed.decode.ctranslate2_engine import CTranslate2Engine

    return CTranslate2Engine(
        model, tokenizer, max_source=max_source, device=device, precision=precision
    )
