"""Which text, which tokens, how to learn, how to write."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from heed.config.base import Count, Rule, Section, Share
from heed.errors import nearest


def _set_name(name: str) -> str | None:
    """Why a set cannot be called so."""
    if name in TAKEN:
        return f"sets cannot have a set {name!r}: that name has another meaning. Take another."
    if not name or "/" in name or name.endswith("-clean"):
        todo = "Name it without a slash, and not as the clean part of another (-clean)."
        return f"sets cannot have a set {name!r}: figures are told by such names. {todo}"
    return None


def _pattern(key: str, pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        return f"{key} is no regular expression: {error}."
    return None


TAKEN = ("train", "dev", "test", "event", "step", "epoch", "time", "seen", "kept")
"""Names of the recipe's own sets, and of what else stands in a line of metrics."""


class DataConfig(Section):
    """Which text. Two plain files are the two sides of a translation; tables hold both."""

    train: list[str] = Field(default_factory=list)
    """Files to learn from."""
    dev: list[str] = Field(default_factory=list)
    """Files to choose by; without any, a share of train is set aside."""
    dev_seed: int = Field(default=0, ge=0)
    """Draws what is set aside: the same texts for every `seed`, so that runs can be compared."""
    test: list[str] = Field(default_factory=list)
    """Files that only the final score looks at."""
    world: Count | None = None
    """Learn from this many sentences of the generated world instead of files."""
    world_test: Count = 1000
    """Sentences in the generated dev set, and as many in the test set."""
    sets: dict[str, list[str]] = Field(default_factory=dict)
    """Further named sets to evaluate on while training."""
    unit: Literal["line", "document", "file"] = "line"
    """What one text of a plain file is, for language models."""
    max_length: Count = 256
    """Tokens a text may have; longer ones are cut, and counted (a language model's windowed)."""
    drop: str | None = None
    """Learn from no text in which this pattern (a regular expression) is found; "^<" for markup."""
    both: bool = False
    """Learn every pair of texts in both directions, with one model that then translates either way
    (docs/small-data.md); what is evaluated is source to target."""
    denoise: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of texts that an epoch has once more, to be restored: the target language read with
    pieces hidden, left out and out of order; with `both`, either (docs/small-data.md)."""
    pack: bool = False
    """Fill a language model's training rows with several texts, which don't see each other."""
    blocks: Literal["random"] | None = None
    """Learn from blocks of max_length tokens that begin anywhere in the text, which is read as one
    stream, a text after the other; unset, from whole texts."""

    rules: ClassVar[tuple[Rule, ...]] = (
        lambda d: (
            "pack and blocks are two ways to fill a row: use one of them."
            if d.pack and d.blocks
            else None
        ),
        lambda d: (
            "world and train are two sources of text: give one of them."
            if d.world is not None and d.train
            else None
        ),
        lambda d: _pattern("drop", d.drop),
        lambda d: next(filter(None, map(_set_name, d.sets)), None),
    )


class TokenizerConfig(Section):
    """How text becomes ids."""

    kind: Literal["bpe", "unigram", "word", "char", "byte"] = "bpe"
    """Pieces learnt by merging, by likelihood, or fixed: words, characters, bytes."""
    vocab_size: Count | None = None
    """How many pieces; unset, as many as the text can teach (up to 8,000 for bpe and unigram)."""
    min_count: Count = 1
    """How often a word or character must occur to get an id of its own."""
    lowercase: bool = False
    """Fold case before anything else."""
    split: Literal["space", "treebank"] = "space"
    """What parts words of kind `word`: white space, or punctuation and contractions as well."""
    text: list[str] = Field(default_factory=list)
    """Files to learn the pieces from beside data.train."""
    dropout: Share = 0.0
    """Share of merges left out at random while the training text of kind `bpe` is cut, so that
    words are met in other pieces every epoch (docs/small-data.md); 0.1 is usual."""

    rules: ClassVar[tuple[Rule, ...]] = (
        lambda t: (
            f"split {t.split!r} is for kind 'word', not for {t.kind!r}."
            if t.split != "space" and t.kind != "word"
            else None
        ),
        lambda t: (
            f"dropout leaves out merges, which kind {t.kind!r} has none of: use kind = 'bpe'."
            if t.dropout and t.kind != "bpe"
            else None
        ),
    )


NonNegative = Annotated[float, Field(ge=0.0)]
Weight = Annotated[float, Field(gt=0.0)]


def _one_budget(t: Any) -> str | None:
    if t.batch_size is None or t.batch_tokens is None:
        return None
    return "batch_size and batch_tokens both say how large a batch is: set one of them."


def _two_betas(t: Any) -> str | None:
    if t.betas is None or len(t.betas) == 2:
        return None
    return f"betas are two, as [0.9, 0.98], not {len(t.betas)}."


class TrainConfig(Section):
    """How the model learns."""

    steps: Count | None = None
    """Updates to make; with `epochs` as well, whichever comes first."""
    epochs: Count | None = None
    """Passes over the training text; without this and `steps`, 20."""
    batch_tokens: Count | None = None
    """Tokens in a batch, padding included; unset with batch_size unset, 4,096."""
    batch_size: Count | None = None
    """Texts in a batch."""
    accumulate: Count = 1
    """Batches whose gradients add up to one update."""
    optimizer: str = "adamw"
    """adamw, adam, sgd, adagrad, adafactor, lion or muon."""
    lr: Annotated[float, Field(gt=0.0)] = 1e-3
    """The learning rate at its height."""
    weight_decay: NonNegative = 0.01
    """Pull of matrices towards zero; norms, biases and embeddings are left alone."""
    betas: list[Share] | None = None
    """The two averages of Adam, AdamW, Lion; unset, the rule's own."""
    momentum: Share | None = None
    """Of SGD and Muon; unset, the rule's own."""
    muon_lr: Annotated[float, Field(gt=0.0)] | None = None
    """Muon's rate for matrices; unset, lr."""
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """What each layer's rate is of the one above it: heads learn at lr, embeddings slowest."""
    schedule: str = "inverse_sqrt"
    """constant, inverse_sqrt, cosine, linear or wsd (warm-up, stable, decay)."""
    warmup: Annotated[int, Field(ge=0)] | None = None
    """Updates over which the rate rises from zero; unset, a tenth of all, 400 at most."""
    lr_floor: Share = 0.0
    """Share of the rate that is left at the end of a falling schedule."""
    clip: NonNegative = 1.0
    """Largest norm of the gradient; 0 leaves it be."""
    objective: Literal["next", "masked"] = "next"
    """What `generate` learns: the next token, or hidden ones from both sides."""
    mask_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of tokens the masked objective asks for."""
    label_smoothing: Share = 0.0
    """Share of the target spread over all classes or tokens."""
    class_weights: Literal["balanced"] | dict[str, Weight] | None = None
    """What a text of each class counts for in training: `balanced`, so much that all classes count
    alike; or a table, { name = 2.0 }, where a class left out counts 1. Unset, texts count alike."""
    token_dropout: Share = 0.0
    """Share of its tokens that a classifier in training does not see, drawn anew each time."""
    hide_source: Share = 0.0
    """Share of a translation's source tokens shown as the mask in training, others every epoch
    (docs/small-data.md); 0.1 is usual."""
    rdrop: NonNegative = 0.0
    """Weight of R-Drop (Liang et al. 2021): each text is read twice with other dropout, and what is
    said is to agree (docs/small-data.md). An update costs twice as much; 5 is usual, 0 is none."""
    ema: Share = 0.0
    """Decay of a running mean of the weights, which then is what is scored and kept; 0 is none."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Arithmetic of the forward pass; auto is bf16 where the device is fast at it."""
    speed: Literal["auto", "eager", "graphs", "compile"] = "auto"
    """How updates are launched: kernel by kernel, as captured CUDA graphs, or with blocks compiled
    (on a GPU then captured). Auto takes what will be done first."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several ranks (torchrun) share the model: a copy on each, or a part of every weight."""
    deterministic: bool = False
    """On a GPU use only algorithms that give the same bits every time; some are slower."""
    halve: bool = False
    """Learn from a batch that does not fit into memory in halves, quarters and so on."""
    evaluate_every: Count | None = None
    """Updates between evaluations; unset, an epoch."""
    evaluate_train: bool = False
    """Evaluate on the training text too, by the same path."""
    evaluate_bleu: bool = False
    """Translate every set at every evaluation, greedily, and keep its BLEU beside its loss."""
    evaluate_test: bool = False
    """When all is done, score the chosen weights on test as `heed evaluate` does, but for TER."""
    evaluate_batches: Count | None = None
    """Look at no more than this many batches of each set."""
    patience: Count | None = None
    """Stop after this many evaluations without a better one."""
    best: str = "dev/loss"
    """The metric that picks the best checkpoint: lower for loss and perplexity, else higher."""
    average: Count = 1
    """At the end try the mean of the weights at this many last evaluations, and keep the better."""
    checkpoint_every: Count | None = None
    """Updates between checkpoints; unset, at every evaluation."""
    keep: Count = 2
    """Checkpoints to keep, each with the weights that were best by then."""
    log_every: Count = 50
    """Updates between lines of metrics."""
    skip_limit: Annotated[int, Field(ge=0)] = 10
    """Updates in a row that may be skipped because the loss was not finite."""

    track: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(default_factory=list)
    """Where else to send metrics, as they are written."""

    rules: ClassVar[tuple[Rule, ...]] = (_one_budget, _two_betas)


FROZEN = ("embeddings", "body")


def _freezes_what(i: Any) -> str | None:
    if i.freeze is None or i.freeze in FROZEN:
        return None
    if isinstance(i.freeze, int) and i.freeze >= 1:
        return None
    hint = nearest(str(i.freeze), FROZEN)
    return (
        f"freeze cannot be {i.freeze!r}: it is 'embeddings', a number of layers from below, or "
        f"'body'.{hint}"
    )


def _keeps_something(i: Any) -> str | None:
    asked = [key for key in ("freeze", "lora", "lora_alpha") if getattr(i, key) is not None]
    if asked and getattr(i, "from", None) is None:
        return f"{asked[0]} keeps weights as they were: say with `from` where they come from."
    if i.freeze is not None and i.lora is not None:
        return "lora leaves all layers as they were already: leave freeze out."
    if i.lora_alpha is not None and i.lora is None:
        return "lora_alpha is for lora, which is unset."
    return None


class InitConfig(Section):
    """Where the weights begin, and which of them learn."""

    run: str | None = Field(default=None, alias="from")
    """A finished run, a folder of `transformers`, or a name on its hub: the model's shape, its
    weights and its tokenizer come from there. Unset, weights are random."""
    freeze: str | int | None = None
    """What stays as it was: "embeddings"; a number of layers from below, embeddings with them; or
    "body", all but the head. What was not there before learns in any case."""
    lora: Count | None = None
    """Rank of adapters that learn in place of the layers (Hu et al. 2021); merged at the end."""
    lora_alpha: Annotated[float, Field(gt=0.0)] | None = None
    """Adapters count lora_alpha / lora times; unset, twice."""
    lora_on: Literal["qv", "attention", "all"] = "attention"
    """Which maps get one: to queries and values, all four of attention, or those and feed-forward.
    """

    rules: ClassVar[tuple[Rule, ...]] = (_freezes_what, _keeps_something)


class DecodeConfig(Section):
    """How a trained model writes."""

    max_ratio: Annotated[float, Field(gt=0.0)] = 2.0
    """Longest output, as a multiple of the source's tokens…"""
    max_extra: Annotated[int, Field(ge=0)] = 10
    """…plus this many."""
    batch_size: Count | None = None
    """Sentences decoded side by side; unset, 128, and 2,048 on a GPU. Fewer where they are long."""
    beam: Count = 1
    """Hypotheses kept side by side; 1 takes the likeliest token every time."""
    length_penalty: NonNegative = 1.0
    """A hypothesis is ranked by its log-probability over its length to this power."""
    coverage_penalty: NonNegative = 0.0
    """How much a source token counts that no target token looked at."""
    early_stop: bool = False
    """Stop when as many hypotheses have ended as the beam is wide, though others may be better."""
    sample: bool = False
    """Draw each token by chance instead."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """What logits are divided by before a draw: below 1 the likely gets likelier."""
    top_k: Count | None = None
    """Draw from so many of the likeliest tokens."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Draw from the fewest tokens that together have this probability."""
    min_p: Share = 0.0
    """Draw from tokens that have at least this share of the likeliest one's probability."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the draws; each sample of each text has its own stream of them."""
    copy_unknown: bool = False
    """Write for an unknown word the source word that the model looked at most."""

    rules: ClassVar[tuple[Rule, ...]] = (
        lambda d: (
            f"sample and beam = {d.beam} are two ways to choose a token: use one of them."
            if d.sample and d.beam > 1
            else None
        ),
    )
