"""A tokenizer of ours, as `transformers` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from heed.data.tokenizers.pretrained import Borrowed
from heed.data.tokenizers.tokenizer import SPECIALS, Tokenizer
from heed.models.huggingface.folder import TOKENIZER, TOKENIZER_CONFIG

AROUND = {
    "translate": ("$A <eos>", None),
    "classify": ("<bos> $A <eos>", "<bos> $A <eos> $B <eos>"),
    "generate": ("<bos> $A", None),
}
"""What a model reads around a text, and around a pair of texts."""
ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token")


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, *, around: str | None, longest: int | None
) -> None:
    """tokenizer.json, and which of its tokens are special beside it.

    `around` is the task that says what stands around a text; None is nothing.
    """
    if isinstance(tokenizer, Borrowed):
        tokenizer.save(folder / TOKENIZER)
        return
    core = tokenizers.Tokenizer.from_str(tokenizer.core.to_str())
    core.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    if around is not None:
        single, pair = AROUND[around]
        core.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(name, i) for i, name in enumerate(SPECIALS)]
        )
    core.save(str(folder / TOKENIZER))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= dict(zip(ROLES, SPECIALS, strict=True))
    config |= {"cls_token": config["bos_token"], "sep_token": config["eos_token"]}
    config |= {"clean_up_tokenization_spaces": False}
    config |= {} if longest is None else {"model_max_length": longest}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_CONFIG).write_text(text + "\n", encoding="utf-8")
