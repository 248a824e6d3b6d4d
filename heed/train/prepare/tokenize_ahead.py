"""Tokenize the text of a run in a process of its own, while training imports torch.

The process trains the tokenizer and builds the token stores, and leaves both in the cache, where
training finds them. It says nothing: where it fails, training meets the same error itself.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from heed.child_process import child_environment
from heed.config import Recipe
from heed.train.distributed.torchrun import is_rank0

MIN_BYTES = 1 << 20
"""Less text than this is tokenized in less time than a process takes to start."""
GRACE_SECONDS = 1.0
"""Seconds that the process has to delete its drafts when the parent has ended."""

_process: subprocess.Popen[bytes] | None = None
"""The process, from `start` to `wait`."""


def start(recipe: Recipe) -> None:
    """Start to tokenize the text of a recipe, on rank 0, if there is enough of it."""
    global _process
    if recipe.init.from_model is not None or not is_rank0():
        return
    files = [Path(name) for name in recipe.data.train]
    if sum(file.stat().st_size for file in files if file.is_file()) < MIN_BYTES:
        return
    _process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("HEED_DEBUG") else subprocess.DEVNULL,
        env=child_environment(),
    )
    if _process.stdin is not None:  # It stays open until this process ends.
        with suppress(OSError):  # The process ended at once.
            _process.stdin.write(json.dumps(recipe.tables()).encode() + b"\n")
            _process.stdin.flush()


def wait(say: Callable[[str], None]) -> None:
    """Wait for the process, if there is one: what it could make is then in the cache."""
    global _process
    if _process is None:
        return
    if _process.poll() is None:
        say("Tokenizing the text…")
    with _process:
        _process.wait()
    _process = None


def main() -> None:
    """Read a recipe from stdin, and fill the cache with its tokenizer and its token stores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    message = sys.stdin.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from heed.data.splits import open_splits
    from heed.train.prepare.text_cache import cached_tokenizer, open_stores

    recipe = Recipe.of(json.loads(message))
    corpora = open_splits(recipe)
    tokenizer = cached_tokenizer(recipe, corpora, say=lambda text: None)
    classes = corpora["train"].labels() if recipe.task == "classify" else ()
    open_stores(recipe, corpora, tokenizer, classes)


def _end_with_parent() -> None:
    """End this process once its stdin is closed, which is when the parent ends in any way.

    In time its drafts in the cache are deleted; else the next process that writes there does it.
    """
    os.read(0, 1)
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
