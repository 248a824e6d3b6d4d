"""`heed evaluate`: what a run's model is worth on text that it did not learn from.

The whole set is scored, and beside it the part that is not also in the training text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heed.api import Translator
from heed.config import Recipe
from heed.data.batches import Batches, Rows
from heed.data.corpus import Corpus, Record, open_corpus
from heed.data.doctor import overlap
from heed.data.store import open_store
from heed.data.tokenizer import Tokenizer
from heed.decode.texts import Translation
from heed.errors import ConfigError, DataError, RunError, nearest
from heed.models import Model
from heed.models import Translator as TranslationModel
from heed.runs import Run, write_whole
from heed.score.assess import Assessment, assess
from heed.score.evaluation import evaluate as mean_loss
from heed.score.translation import METRICS, RESAMPLES
from heed.train.engine import load
from heed.train.ledger import FALLING
from heed.train.setup import batches_of, open_corpora, set_aside, world_files

Say = Callable[[str], None]
RESULTS = "evaluation.json"
TRANSLATIONS = "translations"
WHOLE = ("best", "worst", "decode")
"""What is told of the whole set alone."""


@dataclass(frozen=True)
class Settings:
    """What `heed evaluate` was asked for."""

    split: str | None = None
    test: Sequence[str] = ()
    metrics: Sequence[str] = tuple(METRICS)
    resamples: int = RESAMPLES
    sentences: Path | None = None
    """Where else to write every translation with its score."""
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[decode]` to change: beam=5."""


@dataclass(frozen=True)
class Train:
    """The text a run learnt from, where it is still there; and why not, where it is not."""

    corpus: Corpus | None
    missing: str = ""


@dataclass(frozen=True)
class HeldOut:
    """A set of texts to evaluate on."""

    name: str
    corpus: Corpus
    rows: Rows | None = None
    """Which of the texts kept; None is all."""

    def records(self, dropped: Counter[str]) -> list[Record]:
        """The texts, in order."""
        records = list(self.corpus.kept(dropped))
        return records if self.rows is None else [records[i] for i in self.rows.tolist()]


def evaluate(folder: Path, settings: Settings, *, device: str, say: Say) -> dict[str, Any]:
    """Score a run on a set, and keep the result in the run folder."""
    run = Run.open(folder)
    if run.recipe().task != "translate" and (settings.sentences or settings.decode):
        raise ConfigError([f"--sentences and --beam are for translations; {folder} makes none."])
    model, tokenizer, recipe = load(folder, device=device)
    train = training_text(run, recipe)
    held_out = find_set(recipe, train, settings)
    dropped: Counter[str] = Counter()
    records = held_out.records(dropped)
    if not records:
        raise DataError("there is nothing to evaluate on.", where=", ".join(held_out.corpus.paths))
    seen = seen_in_train(held_out, records, train)
    clean = [] if seen is None else [i for i, known in enumerate(seen) if not known]
    parts: list[Sequence[int]] = [range(len(records))]
    if 0 < len(clean) < len(records):
        parts.append(clean)
    batches = _batches(recipe, held_out, tokenizer, train)
    facts = _losses(model, batches, held_out, parts)
    if isinstance(model, TranslationModel):
        say(f"Translating {len(records):,} texts…")
        translator = Translator(model, tokenizer, recipe)
        written = translator.translations([r.texts[0] for r in records], **settings.decode)
        found = [_assess(folder, records, written, rows, settings) for rows in parts]
        _keep_translations(folder, held_out.name, found[0], settings.sentences)
        for told, assessment, rows in zip(facts, found, parts, strict=True):
            told |= assessment.facts()
            told["hit_limit"] = sum(written[i].cut for i in rows) / len(rows)
        facts[0]["decode"] = recipe.decode.model_dump() | dict(settings.decode)
    result = {
        "run": str(folder),
        "task": recipe.task,
        "split": held_out.name,
        "files": list(held_out.corpus.paths),
        "hash": held_out.corpus.fingerprint(),
        "dropped": dict(dropped),
        "checkpoint": checkpoint(run, recipe),
        **facts[0],
        "in_train": None if seen is None else sum(seen),
        "clean": {k: v for k, v in facts[-1].items() if k not in WHOLE} if clean else None,
    } | ({"unknown": train.missing} if seen is None else {})
    _keep(folder / RESULTS, held_out.name, result)
    return result


def checkpoint(run: Run, recipe: Recipe) -> dict[str, Any] | None:
    """Which weights `model.safetensors` holds, by what training wrote down when it chose them."""
    name, _, metric = recipe.train.best.partition("/")
    lines = [line for line in run.metrics() if name in line]
    average = next((line for line in lines if line["event"] == "average" and line["kept"]), None)
    scored = [line for line in lines if line["event"] == "evaluate"]
    if not scored:
        return None
    first_best = min if metric in FALLING else max
    line = average or first_best(scored, key=lambda line: line[name][metric])
    mean = f"the mean of the last {recipe.train.average} weights"
    return {
        "weights": mean if average else "the best weights",
        "step": line["step"],
        "epoch": line["epoch"],
        "metric": recipe.train.best,
        "value": line[name][metric],
    }


def training_text(run: Run, recipe: Recipe) -> Train:
    """What the run learnt from, if it is still there and still the same."""
    data = recipe.data
    try:
        if data.world is not None:
            corpus = open_corpora(recipe)["train"]
        else:
            corpus = open_corpus(data.train, task=recipe.task, unit=data.unit, drop=data.drop)
        now = corpus.fingerprint()
    except DataError as error:
        return Train(None, f"the training text cannot be read: {error}")
    facts = json.loads(run.environment_path.read_text(encoding="utf-8"))
    if facts["data"]["train"] != now:
        return Train(None, f"the training text is not what it was: {', '.join(corpus.paths)}")
    return Train(corpus)


def find_set(recipe: Recipe, train: Train, settings: Settings) -> HeldOut:
    """The files named, or the split named, or the recipe's test set, or dev."""
    if settings.test and settings.split is not None:
        raise ConfigError(["--test and --split are two ways to name a set: use one of them."])
    if settings.test:
        return HeldOut(_stem(settings.test[0]), _open(settings.test, recipe, train))
    data, named = recipe.data, dict(recipe.data.sets)
    if data.world is not None:
        named |= world_files(recipe)
    else:
        given = {"train": data.train, "dev": data.dev, "test": data.test}
        named |= {name: files for name, files in given.items() if files}
    name = settings.split or ("test" if "test" in named else "dev")
    if name in named:
        return HeldOut(name, _open(named[name], recipe, train))
    if name == "dev" and train.corpus is not None:  # a share of train was set aside
        held_out, _ = set_aside(sum(1 for _ in train.corpus.kept()), recipe.seed)
        return HeldOut("dev", train.corpus, held_out)
    known = [*named, *([] if "dev" in named else ["dev"])]
    if name in known:
        raise RunError(f"dev was a part of train. {train.missing}", todo="Name files with --test.")
    raise ConfigError(
        [f"There is no set {name!r}: this run has {', '.join(known)}.{nearest(name, known)}"]
    )


def _open(files: Sequence[str], recipe: Recipe, train: Train) -> Corpus:
    return open_corpus(files, task=recipe.task, unit=recipe.data.unit, like=train.corpus)


def _stem(path: str) -> str:
    """`newstest` for `data/newstest.en.gz`."""
    return Path(path).name.partition(".")[0] or "test"


def _batches(recipe: Recipe, held_out: HeldOut, tokenizer: Tokenizer, train: Train) -> Batches:
    """The set as the model reads it, made as training makes it."""
    classes: list[str] = []
    if recipe.task == "classify":
        if train.corpus is None:
            raise RunError(f"the classes are named by train. {train.missing}")
        classes = train.corpus.labels()
    store = open_store(held_out.corpus, tokenizer, classes=classes)
    return batches_of(recipe, store, held_out.rows)


def seen_in_train(held_out: HeldOut, records: Sequence[Record], train: Train) -> list[bool] | None:
    """For each text, whether train has it too; None where that cannot be known."""
    if train.corpus is None:
        return None
    learnt = train.corpus.kept()
    if held_out.rows is not None:  # the set is a part of the same files
        apart = set(held_out.rows.tolist())
        learnt = (record for i, record in enumerate(learnt) if i not in apart)
    return overlap(learnt, records)


def _losses(
    model: Model, batches: Batches, held_out: HeldOut, parts: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Of each part: how many texts, and what the model makes of them."""
    device = next(model.parameters()).device
    rows = np.arange(len(batches.store)) if held_out.rows is None else held_out.rows
    return [
        {"texts": len(part)} | mean_loss(model, batches.only(rows[np.array(part)]), device=device)
        for part in parts
    ]


def _assess(
    folder: Path,
    records: Sequence[Record],
    written: Sequence[Translation],
    rows: Sequence[int],
    settings: Settings,
) -> Assessment:
    """The translations of some of the texts."""
    return assess(
        {str(folder): [written[i].text for i in rows]},
        [[records[i].texts[1] for i in rows]],
        [records[i].texts[0] for i in rows],
        metrics=settings.metrics,
        resamples=settings.resamples,
    )


def _keep_translations(folder: Path, name: str, found: Assessment, also: Path | None) -> None:
    """Every sentence with its score stays with the run: a later test needs no model."""
    table = found.table()
    (folder / TRANSLATIONS).mkdir(exist_ok=True)
    write_whole(folder / TRANSLATIONS / f"{name}.tsv", table)
    if also is not None:
        also.write_text(table, encoding="utf-8")


def _keep(path: Path, name: str, facts: dict[str, Any]) -> None:
    """Write a result beside those on other sets."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(before | {name: facts}, indent=1, ensure_ascii=False)
    write_whole(path, text + "\n")
