"""Write a heed tokenizer as the files that `transformers` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from heed.data.tokenizers.pretrained import PretrainedTokenizer
from heed.data.tokenizers.special_tokens import SPECIAL_TOKEN_NAMES
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.models.huggingface.folder import TOKENIZER, TOKENIZER_CONFIG

TEMPLATES = {
    "translate": ("$A <eos>", None),
    "classify": ("<bos> $A <eos>", "<bos> $A <eos> $B <eos>"),
    "generate": ("<bos> $A", None),
}
"""By task: the special tokens around one text, and around a text pair."""
SPECIAL_TOKEN_KEYS = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token")


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, *, template: str | None, max_length: int | None
) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    `template` is the task whose special tokens surround a text; None adds no special tokens.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        tokenizer.save(folder / TOKENIZER)
        return
    core = tokenizers.Tokenizer.from_str(tokenizer.core.to_str())
    core.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKEN_NAMES])
    if template is not None:
        single, pair = TEMPLATES[template]
        core.post_processor = processors.TemplateProcessing(
            single=single,
            pair=pair,
            special_tokens=[(name, i) for i, name in enumerate(SPECIAL_TOKEN_NAMES)],
        )
    core.save(str(folder / TOKENIZER))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= dict(zip(SPECIAL_TOKEN_KEYS, SPECIAL_TOKEN_NAMES, strict=True))
    config |= {"cls_token": config["bos_token"], "sep_token": config["eos_token"]}
    config |= {"clean_up_tokenization_spaces": False}
    config |= {} if max_length is None else {"model_max_length": max_length}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_CONFIG).write_text(text + "\n", encoding="utf-8")
