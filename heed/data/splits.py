"""The train, dev and test text of a recipe: files that it names, or generated ones."""

from __future__ import annotations

import warnings
from pathlib import Path

from heed import checksums
from heed.checksums import DamagedError
from heed.config import Recipe
from heed.data import synthetic
from heed.data.corpus import Corpus, open_corpus
from heed.errors import HeedWarning
from heed.files import cache_root, delete_folder, publish, temporary_folder


def open_splits(recipe: Recipe) -> dict[str, Corpus]:
    """Open every split that training reads, by name; generated text is written first."""
    data = recipe.data
    if data.synthetic is not None:
        files = synthetic_files(recipe)
        files.pop("test")
    else:
        files = {"train": data.train, "dev": data.dev, **data.sets}
    corpora: dict[str, Corpus] = {}
    for name, paths in files.items():
        if paths:
            corpora[name] = open_corpus(
                paths,
                task=recipe.task,
                unit=data.unit,
                header=data.header,
                like=corpora.get("train"),
                drop=data.drop_pattern if name == "train" else None,
            )
    if data.splits_off_dev and "train" in corpora:
        corpora |= split_files(corpora["train"], data.dev_share)
    return corpora


def split_files(train: Corpus, dev_share: float) -> dict[str, Corpus]:
    """Hold out the last lines of each file for dev, where each file is one text.

    Other corpora are returned whole: sentences of them are held out later (`held_out`).
    """
    if train.unit != "file" or train.layout is not None:
        return {"train": train}
    return dict(zip(("train", "dev"), train.split_by_share(1 - dev_share), strict=True))


def synthetic_files(recipe: Recipe) -> dict[str, list[str]]:
    """Generated train, dev and test files for a task, written unless they are cached."""
    data = recipe.data
    size, test_size, seed = data.synthetic or 0, data.synthetic_test, data.world_seed
    name = f"{synthetic.grammar_hash()}-{seed}-{size}-{test_size}"
    folder = cache_root() / "synthetic" / name
    if not _is_intact(folder):
        _generate(folder, seed, size, test_size)
    suffixes = {"translate": ("en", "fr"), "classify": ("tsv",), "generate": ("txt",)}[recipe.task]
    return {
        split: [str(folder / f"{split}.{suffix}") for suffix in suffixes]
        for split in ("train", "dev", "test")
    }


def _is_intact(folder: Path) -> bool:
    """Whether all generated files are in the cache and match their checksums."""
    if not (folder / checksums.MANIFEST).exists():  # it is written last
        return False
    todo = "The generated text is written again."
    try:
        checksums.verify_manifest(folder, todo=todo)
    except DamagedError as error:
        warnings.warn(str(error), HeedWarning, stacklevel=2)
        return False
    return True


def _generate(folder: Path, seed: int, size: int, test_size: int) -> None:
    """Generate a synthetic corpus: its folder is complete, on the disk too, or absent."""
    if folder.exists():  # damaged, or left by a process that was killed
        delete_folder(folder)
    with temporary_folder(folder) as draft:
        synthetic.write_corpus(draft, train=size, dev=test_size, test=test_size, seed=seed)
        checksums.write_manifest(draft)
        try:
            publish(draft, folder)
        except OSError:  # another process was faster, and its text is the same
            if not (folder / checksums.MANIFEST).exists():
                raise
