"""Who writes: heed itself, or an engine made for serving, where one is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, RunError
from heed.models import Translator

if TYPE_CHECKING:
    from heed.decode.ctranslate2_engine import Served

HEED = "heed"
ENGINES = (HEED, "ctranslate2")


def check(engine: str, *, models: int = 1) -> None:
    """Refuse an engine that there is not, that is not here, or that cannot write so."""
    if engine not in ENGINES:
        raise ConfigError([f"engine cannot be {engine!r}: use {' or '.join(ENGINES)}."])
    if engine == HEED:
        return
    if models > 1:
        raise ConfigError([f"{engine} writes with one model: only heed's own engine joins more."])
    check_installed(engine)


def check_installed(engine: str) -> None:
    """Refuse an engine that is not here."""
    if find_spec(engine) is None:
        raise RunError(f"{engine} is not installed.", todo="Install it: pip install heed[serve]")


def served(
    engine: str, model: Translator, tokenizer: Tokenizer, *, least: int, device: str, precision: str
) -> Served | None:
    """A model in the hands of this engine; None where that is heed.

    `least` is how many tokens a source may have.
    """
    if engine == HEED:
        return None
    from heed.decode.ctranslate2_engine import Served

    return Served(model, tokenizer, least=least, device=device, precision=precision)
