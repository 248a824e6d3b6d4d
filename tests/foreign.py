"""Models of `transformers` for tests: tiny or as wide as the base sizes, random, in a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

transformers: Any = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, PAD = 60, 1
TINY = {
    "bert": {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 40,
        "pad_token_id": PAD,
    },
    "gpt2": {
        "vocab_size": VOCAB,
        "n_embd": 16,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 40,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "marian": {
        "vocab_size": VOCAB,
        "d_model": 16,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 40,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    },
    "t5": {
        "vocab_size": VOCAB,
        "d_model": 16,
        "d_kv": 6,
        "d_ff": 24,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "eos_token_id": 0,
    },
}
TINY["roberta"] = TINY["bert"]
WIDE: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "gpt2": {"n_embd": 768, "n_head": 12},
    "marian": {
        "d_model": 512,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
    },
    "t5": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12},
}
WIDE["roberta"] = WIDE["bert"]
CONFIGS = {
    "bert": "BertConfig",
    "roberta": "RobertaConfig",
    "gpt2": "GPT2Config",
    "marian": "MarianConfig",
    "t5": "T5Config",
}


@dataclass(frozen=True)
class Case:
    """A class and what is unlike the default in its config."""

    name: str
    family: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def translates(self) -> bool:
        return self.family in ("marian", "t5")


LABELS = {"num_labels": 3}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB + 1}
NEWER = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES = {
    "bert": Case("BertModel", "bert"),
    "bert-guesses": Case("BertForMaskedLM", "bert"),
    "bert-relu": Case("BertForMaskedLM", "bert", {"hidden_act": "relu", "layer_norm_eps": 1e-6}),
    "bert-classes": Case("BertForSequenceClassification", "bert", LABELS),
    "roberta": Case("RobertaModel", "roberta"),
    "roberta-guesses": Case("RobertaForMaskedLM", "roberta", {"type_vocab_size": 1}),
    "roberta-classes": Case("RobertaForSequenceClassification", "roberta", LABELS),
    "gpt2": Case("GPT2Model", "gpt2"),
    "gpt2-writes": Case("GPT2LMHeadModel", "gpt2"),
    "gpt2-untied": Case("GPT2LMHeadModel", "gpt2", {"tie_word_embeddings": False, "n_inner": 20}),
    "gpt2-unscaled": Case("GPT2LMHeadModel", "gpt2", {"scale_attn_weights": False}),
    "marian": Case("MarianMTModel", "marian"),
    "marian-scaled": Case(
        "MarianMTModel", "marian", {"scale_embedding": True, "activation_function": "swish"}
    ),
    "marian-apart": Case("MarianMTModel", "marian", APART),
    "t5": Case("T5ForConditionalGeneration", "t5"),
    "t5-gated": Case("T5ForConditionalGeneration", "t5", NEWER),
}


def make(case: Case, *, wide: bool = False, **changes: Any) -> Any:
    """A model with every number moved away from where it began, in evaluation mode."""
    kwargs = TINY[case.family] | (WIDE[case.family] if wide else {}) | case.changes | changes
    config = getattr(transformers, CONFIGS[case.family])(**kwargs, attn_implementation="eager")
    torch.manual_seed(0)
    model = getattr(transformers, case.name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # The matrices of a wide model are random enough, and many.
            if parameter.requires_grad and (parameter.dim() == 1 or not wide):
                parameter.add_(0.03 * torch.randn_like(parameter))
        if case.family == "marian":
            model.final_logits_bias.normal_()
    return model.eval()


def saved(model: Any, folder: Path) -> Path:
    """The same in a folder."""
    model.save_pretrained(folder)
    return folder


def texts(case: Case, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three rows of ids, two of them shorter, and where they are real."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCAB, (3, 9), generator=generator)
    mask = torch.arange(9) < torch.tensor([[9], [6], [4]])
    if case.family == "gpt2":  # what writes is padded on the left
        mask = mask.flip(1)
    return ids.masked_fill(~mask, PAD), mask


def counted(mask: Tensor) -> Tensor:
    """Positions that count real tokens."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)
