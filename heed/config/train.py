"""The sections `init` and `train`: where the weights start, and how they are trained."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from heed.config.base import (
    Check,
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    Share,
    Size,
    shorten,
    unknown_name,
)
from heed.errors import nearest

OPTIMIZERS = {
    "adamw": "Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019)",
    "adam": "steps by the gradient's mean over the root of its mean square (Kingma and Ba 2015)",
    "sgd": "steps along the gradient, with momentum (Robbins and Monro 1951; Polyak 1964)",
    "adagrad": "steps over the root of all squared gradients so far (Duchi et al. 2011)",
    "adafactor": "Adam with mean squares kept by row and column (Shazeer and Stern 2018)",
    "lion": "steps of one size, by the sign of the gradient's mean (Chen et al. 2023)",
    "muon": "the mean gradient of a matrix made orthogonal, AdamW elsewhere (Jordan et al. 2024)",
}
"""The optimizers and what each is, in one line."""
SCHEDULES = ("constant", "inverse_sqrt", "cosine", "linear", "wsd")
FREEZABLE = ("embeddings", "body")
LAST = "last"
"""The value of `train.best_metric` that keeps the last weights."""


def _check_freeze(i: Any) -> str | None:
    if i.freeze is None or i.freeze in FREEZABLE:
        return None
    if isinstance(i.freeze, int) and i.freeze >= 1:
        return None
    hint = nearest(shorten(i.freeze), FREEZABLE)
    return (
        f"freeze cannot be {shorten(i.freeze)}: it is 'embeddings', a number of layers from below, "
        f"or 'body'.{hint}"
    )


def _check_pretrained(i: Any) -> str | None:
    used = [key for key in ("freeze", "lora", "lora_alpha") if getattr(i, key) is not None]
    if used and getattr(i, "from", None) is None:
        return f"{used[0]} needs pretrained weights: name their model with `from`."
    if i.freeze is not None and i.lora is not None:
        return "lora freezes all layers already: leave freeze out."
    if i.lora_alpha is not None and i.lora is None:
        return "lora_alpha is for lora, which is unset."
    return None


class InitConfig(Section):
    """Where the weights start, and which of them are trained."""

    from_model: str | None = Field(default=None, alias="from")
    """A finished run, a folder of `transformers`, or a model name on the Hugging Face hub: shape,
    weights and tokenizer are taken from it. Unset, weights are random."""
    freeze: str | int | None = None
    """What is frozen: "embeddings"; a number of layers from below, with the embeddings; or "body",
    everything but the head. New parameters are trained in any case."""
    lora: Size | None = None
    """Rank of LoRA adapters (Hu et al. 2021), trained in place of the layers and merged into them
    at the end."""
    lora_alpha: Positive | None = None
    """Adapters are scaled by lora_alpha / lora; unset, by 2."""
    lora_targets: Literal["qv", "attention", "all"] = "attention"
    """Which linear layers get an adapter: queries and values, all four of attention, or those and
    the feed-forward."""

    checks: ClassVar[tuple[Check, ...]] = (_check_freeze, _check_pretrained)


def _check_batch_size(t: Any) -> str | None:
    if t.batch_size is None or t.batch_tokens is None:
        return None
    return "batch_size and batch_tokens both say how large a batch is: set one of them."


def _check_betas(t: Any) -> str | None:
    if t.betas is None or len(t.betas) == 2:
        return None
    return f"betas must be two numbers, such as [0.9, 0.98]; got {len(t.betas)}."


class TrainConfig(Section):
    """How the model is trained."""

    steps: Count | None = None
    """Optimizer steps; with `epochs` as well, whichever ends first."""
    epochs: Count | None = None
    """Passes over the training text; without this and `steps`, 20."""
    batch_tokens: Count | None = None
    """Tokens in a batch, padding included; with batch_size unset too, 4,096."""
    batch_size: Count | None = None
    """Sequences in a batch."""
    accumulate: Count = 1
    """Gradient accumulation: batches summed into one optimizer step."""
    optimizer: str = Field(default="adamw", description=f"Optimizer: {', '.join(OPTIMIZERS)}.")
    lr: Positive = 1e-3
    """Peak learning rate."""
    weight_decay: NonNegative = 0.01
    """Weight decay of matrices; norms, biases and embeddings have none."""
    betas: list[Share] | None = None
    """Adam's, AdamW's or Lion's two betas; unset, the optimizer's defaults."""
    momentum: Share | None = None
    """Momentum of SGD and Muon; unset, the optimizer's default."""
    muon_lr: Positive | None = None
    """Muon's learning rate for matrices; unset, lr."""
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Layer-wise learning-rate decay: each layer has this factor times the rate of the layer above.
    Heads train at lr, embeddings slowest."""
    schedule: str = Field(
        default="inverse_sqrt",
        description=f"Learning-rate schedule: {', '.join(SCHEDULES)} (warm-up, stable, decay).",
    )
    warmup: CountOrZero | None = None
    """Warm-up steps, over which the rate rises from zero; unset, a tenth of all, at most 400."""
    lr_floor: Share = 0.0
    """Final learning rate of a decaying schedule, as a share of lr."""
    clip: NonNegative = 1.0
    """Gradient clipping: the maximum norm of the gradient; 0 turns it off."""
    objective: Literal["causal", "masked"] = "causal"
    """What `generate` trains: a causal (next-token) or a masked language model."""
    mask_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of tokens that a masked language model predicts."""
    label_smoothing: Share = 0.0
    """Label smoothing: the share of the target spread over all classes or tokens."""
    class_weights: Literal["balanced"] | dict[str, Positive] | None = None
    """Class weights of the loss: `balanced` (inverse to class counts), or a table { name = 2.0 } in
    which classes left out have weight 1. Unset, all examples weigh the same."""
    token_dropout: Share = 0.0
    """Share of input tokens that a classifier does not see in training, redrawn each time."""
    source_token_dropout: Share = 0.0
    """Share of source tokens replaced by the mask token in training, redrawn each epoch
    (docs/small-data.md); 0.1 is usual."""
    rdrop: NonNegative = 0.0
    """Weight of R-Drop (Liang et al. 2021), the KL divergence between two passes with different
    dropout (docs/small-data.md). A step costs twice as much; 5 is usual, 0 is off."""
    ema: Share = 0.0
    """Decay of the exponential moving average of the weights, which is then evaluated and saved; 0
    is off."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Precision of the forward pass; auto is bf16 where the device is fast at it."""
    fp8_output: bool = False
    """Compute the matrix products of the output layer in 8-bit floating point, on GPUs that have
    them: faster, less exact (docs/speed.md). Elsewhere the layer keeps the run's precision."""
    execution: Literal["auto", "eager", "graphs", "compile"] = "auto"
    """How steps are executed: eagerly, as captured CUDA graphs, or with blocks compiled by
    torch.compile (on a GPU then captured). Auto: CUDA graphs on a GPU, unless the steps are too few
    or there are several ranks; else eager."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several ranks (torchrun) share the model: replicated (DDP) or sharded (FSDP)."""
    deterministic: bool = False
    """Use only deterministic algorithms on a GPU; some are slower."""
    split_on_oom: bool = False
    """Split a batch that does not fit into memory into halves, quarters and so on."""
    evaluate_every: Count | None = None
    """Steps between evaluations; unset, an epoch."""
    evaluate_train: bool = False
    """Evaluate on the training set as well."""
    evaluate_bleu: bool = False
    """At every evaluation translate each set greedily and record its BLEU."""
    evaluate_test: bool = False
    """After training, score the chosen weights on test as `heed evaluate` does, without TER."""
    evaluate_batches: Count | None = None
    """Maximum batches of each set at an evaluation."""
    patience: Count | None = None
    """Early stopping: stop after this many evaluations without improvement; without effect with
    best_metric = 'last'."""
    best_metric: str = "dev/loss"
    """Metric that chooses the weights to keep: lower for loss and perplexity, else higher. `last`
    keeps those of the last evaluation, which is the default where there is no dev set."""
    average_checkpoints: Count = 1
    """At the end, average the weights of this many last evaluations, and keep the average if it is
    better."""
    checkpoint_every: Count | None = None
    """Steps between checkpoints; unset, at every evaluation."""
    keep_checkpoints: Count = 2
    """Checkpoints to keep, each with the best weights up to it."""
    snapshot_every: Count | None = None
    """Steps between snapshots: weights that are kept from step 0 to the last, to see how attention
    forms (`heed attend --over-training`); unset, none."""
    log_every: Count = 50
    """Steps between lines of metrics."""
    max_skipped_steps: CountOrZero = 10
    """Maximum consecutive steps skipped because the loss was not finite."""

    track: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(default_factory=list)
    """Experiment trackers that receive the metrics as well."""

    checks: ClassVar[tuple[Check, ...]] = (
        lambda t: unknown_name("optimizer", t.optimizer, (*OPTIMIZERS,)),
        lambda t: unknown_name("schedule", t.schedule, SCHEDULES),
        _check_batch_size,
        _check_betas,
    )
