"""Pretrained tokenizers, trained elsewhere: any that the `tokenizers` library reads.

Their special tokens have other ids. tokenizer_config.json beside tokenizer.json says which is
which, as `transformers` writes it; where it is missing, the names of the tokens decide. Unlike in a
tokenizer trained here, text that spells a special token is read as that token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import tokenizers

from heed.data.tokenizers.byte_symbols import decode_symbols, show_whitespace
from heed.data.tokenizers.special_tokens import SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError
from heed.files import read_regular, require_shallow, write_atomic

CONFIG, OLD_CONFIG = "tokenizer_config.json", "special_tokens_map.json"
ROLES = {
    "pad": ("pad_token", "eos_token", "sep_token", "bos_token"),
    "unk": ("unk_token",),
    "bos": ("cls_token", "bos_token", "pad_token"),
    "eos": ("sep_token", "eos_token", "bos_token"),
    "mask": ("mask_token",),
}
"""Keys of `transformers` for each role, the first present one counting. A decoder without BOS
starts with padding."""
NAMES = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "bos_token": ("<bos>", "<s>", "[CLS]", "<|endoftext|>"),
    "eos_token": ("<eos>", "</s>", "[SEP]", "<|endoftext|>"),
    "mask_token": ("<mask>", "[MASK]"),
}
"""Names of special tokens to look for where no file says which they are."""


MAX_VOCAB = 1 << 22
"""Ids of a tokenizer are smaller: there is a row of the vocabulary for each, named or not."""


class PretrainedTokenizer(Tokenizer):
    """A tokenizer trained elsewhere, with its own special tokens."""

    def __init__(
        self, core: tokenizers.Tokenizer, specials: SpecialTokens, config: Mapping[str, Any]
    ) -> None:
        super().__init__("pretrained", False, core)
        core.no_padding()
        core.no_truncation()
        known = core.get_vocab(with_added_tokens=True)
        largest = max(known.values())
        if largest >= MAX_VOCAB:
            raise DataError(
                f"the tokenizer has a token with id {largest:,}, and heed reads ids below "
                f"{MAX_VOCAB:,}.",
                todo="Number its tokens from 0.",
            )
        self._tokens = [""] * (largest + 1)
        for name, number in known.items():
            self._tokens[number] = name
        self.specials, self.config = specials, dict(config)
        self._byte_level = "ByteLevel" in json.dumps(json.loads(core.to_str())["decoder"])
        added = core.get_added_tokens_decoder()
        self._special_ids = {number for number, token in added.items() if token.special}
        self._special_ids |= {
            x for x in (specials.pad, specials.unk, specials.bos) if x is not None
        }
        self._special_ids |= {x for x in (specials.eos, specials.mask) if x is not None}

    def strip_special_tokens(self, ids: Sequence[int]) -> list[int]:
        """The ids without special tokens."""
        return [int(i) for i in ids if i not in self._special_ids]

    def save(self, path: Path) -> None:
        """Write tokenizer.json, and beside it the roles of its special tokens."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config, indent=2, ensure_ascii=False)
        write_atomic(path.with_name(CONFIG), text + "\n")
        super().save(path)

    def fingerprint(self) -> str:
        """Hash of everything that encoding and decoding depend on."""
        content = f"{self.core.to_str()} {self.specials}"
        return blake2b(content.encode(), digest_size=16).hexdigest()

    def _display(self, token: int) -> str:
        name = self._tokens[token]
        if token in self._special_ids:
            return name
        return show_whitespace(decode_symbols(name) if self._byte_level else name)


def wrap_pretrained(core: tokenizers.Tokenizer, path: Path) -> PretrainedTokenizer | None:
    """Wrap a tokenizer with the config beside it; None without BOS, EOS and padding."""
    config = _read_config(path.parent)
    if not any(key in config for key in NAMES):
        known = core.get_vocab(with_added_tokens=True)
        present = {key: [name for name in names if name in known] for key, names in NAMES.items()}
        config |= {key: names[0] for key, names in present.items() if names}
    keys = {key for keys in ROLES.values() for key in keys}
    ids = {key: core.token_to_id(_token_text(config.get(key))) for key in keys}
    roles = {
        role: next((ids[key] for key in keys if ids[key] is not None), None)
        for role, keys in ROLES.items()
    }
    pad, bos, eos = roles["pad"], roles["bos"], roles["eos"]
    if pad is None or bos is None or eos is None:
        return None
    return PretrainedTokenizer(
        core, SpecialTokens(pad, roles["unk"], bos, eos, roles["mask"]), config
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """Contents of the config files beside a tokenizer; empty where there are none."""
    config: dict[str, Any] = {}
    for name in (OLD_CONFIG, CONFIG):
        try:
            content = json.loads(read_regular(folder / name))
            require_shallow(content)
        except (OSError, ValueError, RecursionError):
            continue
        config |= content if isinstance(content, dict) else {}
    return config


def _token_text(token: Any) -> str:
    """Text of a token, which may be wrapped in its matching options."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
