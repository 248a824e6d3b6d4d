"""Tokenizers that were not trained here: any that the `tokenizers` library reads.

Their special tokens have ids of their own. Which is which, tokenizer_config.json beside
tokenizer.json says, as `transformers` writes it; where there is none, their names must.
Unlike in a tokenizer trained here, text that spells a special token is read as that token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import tokenizers

from heed.data.tokenizers.byte_symbols import spelled, visible
from heed.data.tokenizers.special_tokens import Specials
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.files import write_atomic

CONFIG, OLDER_CONFIG = "tokenizer_config.json", "special_tokens_map.json"
ROLES = {
    "pad": ("pad_token", "eos_token", "sep_token", "bos_token"),
    "unk": ("unk_token",),
    "bos": ("cls_token", "bos_token", "pad_token"),
    "eos": ("sep_token", "eos_token", "bos_token"),
    "mask": ("mask_token",),
}
"""What each is by `transformers`' keys, the first that there is. A decoder that has no begin mark,
begins with padding."""
NAMES = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "bos_token": ("<bos>", "<s>", "[CLS]", "<|endoftext|>"),
    "eos_token": ("<eos>", "</s>", "[SEP]", "<|endoftext|>"),
    "mask_token": ("<mask>", "[MASK]"),
}
"""What special tokens are called where no file says which they are."""


class Borrowed(Tokenizer):
    """A tokenizer as someone else made it."""

    def __init__(
        self, core: tokenizers.Tokenizer, specials: Specials, config: Mapping[str, Any]
    ) -> None:
        super().__init__("borrowed", False, core)
        core.no_padding()
        core.no_truncation()
        known = core.get_vocab(with_added_tokens=True)
        self._names = [""] * (max(known.values()) + 1)
        for name, number in known.items():
            self._names[number] = name
        self.specials, self.config = specials, dict(config)
        self._bytewise = "ByteLevel" in json.dumps(json.loads(core.to_str())["decoder"])
        added = core.get_added_tokens_decoder()
        self._silent = {number for number, token in added.items() if token.special}
        self._silent |= {x for x in (specials.pad, specials.unk, specials.bos) if x is not None}
        self._silent |= {x for x in (specials.eos, specials.mask) if x is not None}

    def without_specials(self, ids: Sequence[int]) -> list[int]:
        """The ids that stand for text."""
        return [int(i) for i in ids if i not in self._silent]

    def save(self, path: Path) -> None:
        """Write tokenizer.json, and which token is what beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config, indent=2, ensure_ascii=False)
        write_atomic(path.with_name(CONFIG), text + "\n")
        super().save(path)

    def fingerprint(self) -> str:
        """A hex digest of all that encoding and decoding depend on."""
        content = f"{self.core.to_str()} {self.specials}"
        return blake2b(content.encode(), digest_size=16).hexdigest()

    def _shown(self, piece: int) -> str:
        name = self._names[piece]
        if piece in self._silent:
            return name
        return visible(spelled(name) if self._bytewise else name)


def borrowed(core: tokenizers.Tokenizer, path: Path) -> Borrowed | None:
    """A tokenizer with what stands beside it; None where nothing says how a text begins or ends."""
    config = _config(path.parent)
    if not any(key in config for key in NAMES):
        known = core.get_vocab(with_added_tokens=True)
        named = {key: [name for name in names if name in known] for key, names in NAMES.items()}
        config |= {key: names[0] for key, names in named.items() if names}
    keys = {key for keys in ROLES.values() for key in keys}
    ids = {key: core.token_to_id(_content(config.get(key))) for key in keys}
    roles = {
        role: next((ids[key] for key in keys if ids[key] is not None), None)
        for role, keys in ROLES.items()
    }
    pad, bos, eos = roles["pad"], roles["bos"], roles["eos"]
    if pad is None or bos is None or eos is None:
        return None
    return Borrowed(core, Specials(pad, roles["unk"], bos, eos, roles["mask"]), config)


def _config(folder: Path) -> dict[str, Any]:
    """What the files beside a tokenizer say; nothing where there are none."""
    found: dict[str, Any] = {}
    for name in (OLDER_CONFIG, CONFIG):
        try:
            told = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found |= told if isinstance(told, dict) else {}
    return found


def _content(token: Any) -> str:
    """A token's text, which may be wrapped in how it is matched."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""
