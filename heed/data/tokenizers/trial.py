"""Try a tokenizer from elsewhere in a child process, with limits on its time and memory.

A tokenizer.json is a small program: its normalizers can make a text grow without bound, its regular
expressions can take forever, and the library that reads it can panic or abort. So before heed loads
one that it did not write, a child process loads it and encodes a few texts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heed.child_process import child_environment
from heed.errors import DataError

MAX_BYTES = 1 << 28
"""Largest tokenizer.json; those of a quarter of a million tokens have 40 MB."""
SECONDS, MEMORY = 60, 1 << 32
"""Limits of the child process: wall-clock and CPU seconds, and bytes of address space."""
MAX_GROWTH = 10_000
"""Characters that the normalizers, or the decoders, may make of one."""
MAX_TOKENS = 100
"""Tokens of a sample text for each of its bytes."""
GROWTH = {"NFKC": 18.0, "NFKD": 18.0, "Precompiled": 18.0, "NFC": 3.0, "NFD": 4.0}
"""Characters that a normalizer can make of one, by its type; of all others, at most 3."""
OTHER_GROWTH = 3.0
MAX_AFFIX = 1000
"""Characters that a normalizer may put before a text."""
NOT_JSON = "this is not JSON"
TODO = "Use a tokenizer.json that the tokenizers library wrote."
SAMPLES = (
    "",
    " ",
    "The quick brown fox, it's said, jumped over 1,234.50 lazy dogs -- twice!\t(No.)",
    "a" * 300 + " " + "! " * 50,
    "Où est l'œuvre d'Émile? Straße, ¿señor? čeština, Tiếng Việt",
    "Съешь ещё этих мягких французских булок. 今日は。안녕하세요 שלום مرحبا नमस्ते สวัสดี",
    "👩‍👩‍👧‍👦 ﷺ \u0301\u0302 \x00\x01\x7f \ufeff <s> </s> <pad> [CLS] ▁▁ Ġ",
)
"""Texts in many scripts and with odd characters."""


def try_tokenizer(path: Path) -> None:
    """Raise an error for a tokenizer file that cannot be loaded and used within the limits."""
    if path.exists() and not path.is_file():
        raise DataError("this is not a regular file.", where=str(path), todo=TODO)
    if path.stat().st_size > MAX_BYTES:
        what = f"this file has more than {MAX_BYTES:,} bytes."
        raise DataError(what, where=str(path), todo=TODO)
    command = [sys.executable, "-m", __name__, str(path)]
    one_thread = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        child = subprocess.run(
            command,
            env=child_environment(**one_thread),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"this tokenizer needs more than {SECONDS} seconds for a few short texts."
        raise DataError(what, where=str(path), todo=TODO) from None
    if child.returncode:
        reason = child.stdout.decode("utf-8", "replace").strip()
        reason = reason or f"the tokenizers library failed within {MEMORY >> 30} GiB of memory"
        what = reason if reason.startswith(NOT_JSON) else f"this tokenizer cannot be used: {reason}"
        raise DataError(f"{what}.", where=str(path), todo=TODO)


def find_growth(part: Any) -> float:
    """An upper bound on the characters that a normalizer or decoder makes of one character."""
    if not isinstance(part, dict):
        return 1.0
    kind, growth = part.get("type"), 1.0
    for inner in _inner_parts(part):
        growth *= find_growth(inner)
    if kind in ("Sequence", None):
        return growth
    if kind == "Replace":
        pattern, content = part.get("pattern"), part.get("content")
        string = pattern.get("String") if isinstance(pattern, dict) else None
        length = len(content) if isinstance(content, str) else 0
        # A regular expression may match between any two characters.
        return max(1.0, length / len(string)) if isinstance(string, str) and string else 1 + length
    if kind == "Prepend":
        text = part.get("prepend")
        return 1.0 if isinstance(text, str) and len(text) <= MAX_AFFIX else float("inf")
    return GROWTH.get(str(kind), OTHER_GROWTH)


def _inner_parts(part: dict[str, Any]) -> Iterator[Any]:
    for key in ("normalizers", "decoders"):
        parts = part.get(key)
        yield from parts if isinstance(parts, list) else ()


def find_problem(path: Path) -> str | None:
    """Why a tokenizer cannot be used; None if it can. To be called under limits."""
    import tokenizers

    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except ValueError as error:
        return f"{NOT_JSON}: {error}"
    for key in ("normalizer", "decoder"):
        if isinstance(content, dict) and find_growth(content.get(key)) > MAX_GROWTH:
            return f"its {key} makes more than {MAX_GROWTH:,} characters of one"
    core = tokenizers.Tokenizer.from_str(text)
    core.no_padding()
    core.no_truncation()
    for sample in SAMPLES:
        ids = core.encode(sample, add_special_tokens=False).ids
        if len(ids) > MAX_TOKENS * (len(sample.encode()) + 1):
            return f"it makes {len(ids):,} tokens of {len(sample):,} characters"
        core.decode(ids, skip_special_tokens=False)
    return None


def main(path: Path) -> int:
    """Try a tokenizer under limits; the exit code is 0 if it can be used."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        problem = find_problem(path)
    except RecursionError:
        problem = "its JSON is nested too deeply"
    except BaseException as error:
        problem = f"the tokenizers library reports: {error}".splitlines()[0][:300]
    if problem is not None:
        sys.stdout.buffer.write(problem.encode("utf-8", "replace"))
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
