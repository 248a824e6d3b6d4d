"""From a recipe to everything the loop needs: text, tokenizer, batches, model, device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from heed.config import Recipe, TokenizerConfig
from heed.data import world
from heed.data.batches import Batches, Rows
from heed.data.corpus import Corpus, open_corpus
from heed.data.doctor import examine
from heed.data.packing import PackedBatches
from heed.data.shapes import chunks
from heed.data.store import Store, cache_root, open_store
from heed.data.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError
from heed.models import Model, build
from heed.nn.positions import ENCODINGS
from heed.runs import Run
from heed.score.dev import Pair, pairs_of
from heed.train.distributed import ALONE, World
from heed.train.kindle import kindled

Say = Callable[[str], None]
DEV_SHARE, DEV_MOST = 0.05, 2000
FEWEST_PIECES, MOST_PIECES, CHARACTERS_A_PIECE = 400, 8000, 100


@dataclass
class Parts:
    """Everything a recipe stands for, made."""

    recipe: Recipe
    device: torch.device
    bf16: bool
    tokenizer: Tokenizer
    classes: tuple[str, ...]
    model: Model
    train: Batches | PackedBatches
    sets: dict[str, Batches]
    """The splits to evaluate on while training, by name."""
    data_hashes: dict[str, str]
    world: World = ALONE
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    """Source and reference of the sets whose BLEU is asked for at every evaluation."""


def prepare(
    recipe: Recipe, run: Run, *, device: torch.device, say: Say, world: World = ALONE
) -> Parts:
    """Read and check the text, make or load the tokenizer, build the model.

    Among several ranks the first goes ahead where files are written; the others find them.
    """
    bf16 = wants_bf16(recipe.train.precision, device)
    with kindled(recipe, device, bf16=bf16):
        return _prepare(recipe, run, device, bf16, say, world)


def _prepare(
    recipe: Recipe, run: Run, device: torch.device, bf16: bool, say: Say, world: World
) -> Parts:
    with world.in_turn():
        corpora = open_corpora(recipe)
    known = world.once(lambda: _see_the_doctor(corpora, say))
    with world.in_turn():
        tokenizer = _tokenizer(recipe, run, corpora["train"], say)
        classes = tuple(corpora["train"].labels()) if recipe.task == "classify" else ()
        train, sets = _batches(recipe, corpora, tokenizer, classes)
    for name, seen in known.items():
        sets |= _clean(name, sets[name], seen)
    for name, split in sets.items():
        if split.cut:
            say(
                f"{name}: {split.cut:,} texts are longer than {recipe.data.max_length} tokens; cut."
            )
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, tokenizer, len(classes) or None).to(device)
    if recipe.init.run is not None:
        _begin_from(model, Run.open(Path(recipe.init.run)), say)
    if not recipe.train.evaluate_train:
        sets.pop("train")
    hashes = {name: corpus.fingerprint() for name, corpus in corpora.items()}
    pairs = _pairs(corpora, sets) if recipe.train.evaluate_bleu else {}
    return Parts(recipe, device, bf16, tokenizer, classes, model, train, sets, hashes, world, pairs)


def _pairs(corpora: dict[str, Corpus], sets: dict[str, Batches]) -> dict[str, list[Pair]]:
    """The texts of every set but train; a dev set that was set aside is a part of train's."""
    return {
        name: pairs_of(corpora.get(name.removesuffix("-clean"), corpora["train"]), batches)
        for name, batches in sets.items()
        if name != "train"
    }


def refuse_nonsense(recipe: Recipe) -> None:
    """Before anything is written: keys that make no sense together, files that are not there."""
    masked = recipe.train.objective == "masked"
    complaints = []
    if not recipe.data.train and recipe.data.world is None:
        complaints.append(
            "There is no text to learn from: name files (--train FILE, data.train), or data.world."
        )
    if recipe.data.pack and (recipe.task != "generate" or masked):
        complaints.append("[data] pack is for language models that predict the next token.")
    if masked and recipe.task != "generate":
        complaints.append(
            f"[train] objective 'masked' is for task 'generate', not {recipe.task!r}."
        )
    if recipe.train.evaluate_bleu and recipe.task != "translate":
        complaints.append("[train] evaluate_bleu is for task 'translate'.")
    limit = ENCODINGS[recipe.model.position].limit(recipe.model)
    if limit is not None and recipe.data.max_length > limit:
        complaints.append(
            f"[data] max_length {recipe.data.max_length} is beyond the {limit} positions of "
            f"{recipe.model.position!r}: raise model.max_positions or lower data.max_length."
        )
    if complaints:
        raise ConfigError(complaints)
    if recipe.data.world is None:
        open_corpora(recipe)


def build_model(recipe: Recipe, tokenizer: Tokenizer, classes: int | None) -> Model:
    """The model a recipe asks for, freshly drawn."""
    return build(
        recipe.task,
        recipe.model,
        vocab=tokenizer.vocab_size,
        classes=classes,
        causal=recipe.train.objective == "next",
    )


def _begin_from(model: Model, run: Run, say: Say) -> None:
    """Take from a finished run every weight that fits; say which of this model's began anew."""
    weights = load_file(run.require_weights())
    own = model.state_dict()
    fitting = {n: w for n, w in weights.items() if n in own and own[n].shape == w.shape}
    if not fitting:
        raise ConfigError(
            [f"[init] no weight of {run.folder} fits this model: not one shape is the same."]
        )
    model.load_state_dict(own | fitting)
    fresh = sorted(own.keys() - fitting.keys())
    say(f"Beginning from {run.folder}: {len(fitting)} of {len(own)} weights.")
    if fresh:
        say(f"Begun anew: {', '.join(fresh)}.")


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError([f"There is no device {name!r}: use auto, cpu or cuda."]) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(["device cuda was asked for, and torch sees no GPU here: use cpu."])
    return device


def wants_bf16(precision: str, device: torch.device) -> bool:
    """Whether the forward pass is to be in bfloat16; `auto` is where the device is fast at it."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # Without these instructions a CPU would widen every number and narrow every result.
    able: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def open_corpora(recipe: Recipe) -> dict[str, Corpus]:
    """The splits a recipe names, those of the generated world written first if they are not."""
    data = recipe.data
    if data.world is not None:
        named = {name: files for name, files in world_files(recipe).items() if name != "test"}
    else:
        named = {"train": data.train, "dev": data.dev, **data.sets}
    corpora: dict[str, Corpus] = {}
    for name, paths in named.items():
        if paths:
            like = corpora.get("train")
            corpora[name] = open_corpus(
                paths,
                task=recipe.task,
                unit=data.unit,
                like=like,
                drop=data.drop if name == "train" else None,
            )
    return corpora


def world_files(recipe: Recipe) -> dict[str, list[str]]:
    """The generated world's train, dev and test files for a task, written if they are not there."""
    size, held_out = recipe.data.world or 0, recipe.data.world_test
    folder = cache_root() / "world" / f"{world.edition()}-{recipe.seed}-{size}-{held_out}"
    if not (folder / "test.txt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        world.write(folder, train=size, dev=held_out, test=held_out, seed=recipe.seed)
    suffixes = {"translate": ("en", "fr"), "classify": ("tsv",), "generate": ("txt",)}[recipe.task]
    return {
        split: [str(folder / f"{split}.{suffix}") for suffix in suffixes]
        for split in ("train", "dev", "test")
    }


def _see_the_doctor(corpora: dict[str, Corpus], say: Say) -> dict[str, list[int]]:
    """Say what would hurt; refuse what cannot be read.

    Returns the sets that train has a part of, each with the texts that it has.
    """
    report = examine(corpora)
    if not report.ok:
        first, more = report.errors[0], len(report.errors) - 1
        where = str(first.places[0]) if first.places else None
        raise DataError(
            f"{first.message}{f' (and {more} more errors)' if more else ''}",
            where=where,
            todo="`heed check` on these files shows everything.",
        )
    for finding in report.findings:
        if finding.severity == "warning":
            say(f"{finding.split}: {finding.message}")
    return {name: np.flatnonzero(seen).tolist() for name, seen in report.seen.items() if seen.any()}


def _clean(name: str, whole: Batches, seen: list[int]) -> dict[str, Batches]:
    """The part of a set that is not also in train, to be scored beside the whole."""
    unseen = np.setdiff1d(np.arange(len(whole.store)), seen)
    return {f"{name}-clean": whole.only(unseen)} if len(unseen) else {}


def _tokenizer(recipe: Recipe, run: Run, corpus: Corpus, say: Say) -> Tokenizer:
    """The run's own; else one learnt before from this very text; else one learnt now."""
    if run.tokenizer_path.exists():
        return Tokenizer.load(run.tokenizer_path)
    if recipe.init.run is not None:
        tokenizer = Tokenizer.load(Run.open(Path(recipe.init.run)).tokenizer_path)
        tokenizer.save(run.tokenizer_path)
        return tokenizer
    settings = recipe.tokenizer
    facts = [corpus.fingerprint(), corpus.task, corpus.unit, corpus.drop]
    told = f"{facts} {settings.model_dump_json()}"
    name = blake2b(told.encode(), digest_size=16).hexdigest()
    kept = cache_root() / "tokenizers" / f"{name}.json"
    if kept.exists():
        tokenizer = Tokenizer.load(kept)
    else:
        say(f"Learning a {settings.kind} tokenizer…")
        tokenizer = _learn(settings, corpus)
        kept.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(kept)
    tokenizer.save(run.tokenizer_path)
    return tokenizer


def _learn(settings: TokenizerConfig, corpus: Corpus) -> Tokenizer:
    def texts() -> Iterator[str]:
        for record in corpus.kept():
            yield from record.texts

    size = settings.vocab_size
    if size is None and settings.kind in ("bpe", "unigram"):
        # A piece must be met often enough to be learnt: a small corpus gets few.
        characters = sum(map(len, texts()))
        size = min(MOST_PIECES, max(FEWEST_PIECES, characters // CHARACTERS_A_PIECE))
    return Tokenizer.train(
        texts(),
        kind=settings.kind,
        vocab_size=size,
        min_count=settings.min_count,
        lowercase=settings.lowercase,
    )


def set_aside(count: int, seed: int) -> tuple[Rows, Rows]:
    """Which of so many texts to choose by, and which to learn from."""
    held_out = min(DEV_MOST, int(DEV_SHARE * count) + 1)
    random = np.random.Generator(np.random.PCG64(seed))
    learnt = np.ones(count, np.bool_)
    learnt[random.choice(count, held_out, replace=False)] = False
    # In parts, for there may be many: places of 8 bytes each become 4.
    parts = [
        np.flatnonzero(learnt[p]).astype(np.uint32) + np.uint32(p.start) for p in chunks(count)
    ]
    return np.flatnonzero(~learnt).astype(np.uint32), np.concatenate(parts)


def batches_of(recipe: Recipe, store: Store, rows: Rows | None = None) -> Batches:
    """Some of a store's texts, or all, as a recipe's model reads them."""
    settings = recipe.train
    return Batches(
        store,
        recipe.task,
        max_length=recipe.data.max_length,
        batch_tokens=settings.batch_tokens,
        batch_size=settings.batch_size,
        seed=recipe.seed,
        rows=rows,
        masked=settings.mask_share if settings.objective == "masked" else 0.0,
    )


def _batches(
    recipe: Recipe, corpora: dict[str, Corpus], tokenizer: Tokenizer, classes: tuple[str, ...]
) -> tuple[Batches | PackedBatches, dict[str, Batches]]:
    """What to learn from, and every set to evaluate on, the training text under `train`."""
    settings, data = recipe.train, recipe.data
    stores = {name: open_store(c, tokenizer, classes=classes) for name, c in corpora.items()}
    rows: dict[str, Rows | None] = dict.fromkeys(stores)
    if "dev" not in stores:  # a share of train is set aside
        stores["dev"] = stores["train"]
        count = len(stores["train"])
        rows["dev"], rows["train"] = set_aside(count, recipe.seed)
    sets = {name: batches_of(recipe, store, rows[name]) for name, store in stores.items()}
    if not data.pack:
        return sets["train"], sets
    packed = PackedBatches(
        stores["train"],
        max_length=data.max_length,
        batch_tokens=settings.batch_tokens,
        batch_size=settings.batch_size,
        seed=recipe.seed,
        rows=rows["train"],
    )
    return packed, sets
