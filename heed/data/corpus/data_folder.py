"""Find a recipe's files in a folder of another corpus: other languages, another name for dev.

A recipe names `train.en`, `train.fr`, `dev.en` and so on. A folder may have `train.de`, `train.nl`,
`valid.de` instead. Where more than one choice is possible, the error lists what is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from heed.data.corpus.rows import detect_format
from heed.data.corpus.split_names import file_language, split_name, without_compression
from heed.errors import DataError, make_printable

Languages = tuple[str, str]
"""The source and the target language."""
MAX_LISTED = 12  # files that an error lists


def find_in_folder(
    folder: Path, splits: Mapping[str, Sequence[str]], languages: Languages | None = None
) -> dict[str, list[str]]:
    """The files of each split of a recipe in this folder.

    `languages` are the source and the target; by default the folder decides.
    """
    if not folder.is_dir():
        raise DataError(
            "there is no such folder.", where=str(folder), todo="Name one with --data DIR."
        )
    missing = [name for names in splits.values() for name in names if not (folder / name).is_file()]
    if missing and languages is None:
        recipe_languages = _recipe_languages(splits)
        languages = recipe_languages and _choose_languages(folder, recipe_languages)
    return {
        split: _find_split(folder, split, names, languages) if missing else _join(folder, names)
        for split, names in splits.items()
    }


def _join(folder: Path, names: Sequence[str]) -> list[str]:
    return [str(folder / name) for name in names]


def _recipe_languages(splits: Mapping[str, Sequence[str]]) -> Languages | None:
    """Source and target language of a recipe's parallel files, if it has any."""
    for names in splits.values():
        source, target = map(file_language, names) if len(names) == 2 else (None, None)
        if source is not None and target is not None:
            return source, target
    return None


def _choose_languages(folder: Path, recipe: Languages) -> Languages:
    """The two languages of the training files in a folder, in their order.

    A language of the recipe stays source or target; else the folder's name says the order (de-nl).
    """
    stems: dict[str, set[str]] = {}
    for path in _plain_files(folder):
        language = file_language(path.name)
        if split_name(path.name) == "train" and language is not None:
            stems.setdefault(without_compression(path.name).stem, set()).add(language)
    present = stems.get("train") or (next(iter(stems.values())) if len(stems) == 1 else set())
    if {*recipe} <= present:
        return recipe
    if len(present) != 2:
        count = "no training files" if not present else f"training files in {len(present)} language"
        count += "s" * (len(present) > 2)
        raise _ambiguous(folder, f"there are {count}, and two languages are needed")
    first, second = sorted(present)
    if recipe[0] in present or recipe[1] in present:
        source_first = recipe[0] == first or recipe[1] == second
        return (first, second) if source_first else (second, first)
    for source, target in ((first, second), (second, first)):
        if re.search(rf"(^|[^a-z]){source}[-_]{target}([^a-z]|$)", folder.resolve().name.lower()):
            return source, target
    why = f"it is not clear which of {first} and {second} is the source"
    todo = f"Rename the folder to {first}-{second} or {second}-{first}"
    raise _ambiguous(folder, why, todo)


def _find_split(
    folder: Path, split: str, names: Sequence[str], languages: Languages | None
) -> list[str]:
    """The files of one split: by the recipe's names, in other languages, or under another name."""
    parallel = len(names) == 2 and languages is not None and all(map(file_language, names))
    exact, endings = list(names), [without_compression(name).suffix for name in names[:1]]
    if parallel and languages is not None:
        pairs = zip(names, languages, strict=True)
        exact = [f"{without_compression(name).stem}.{language}" for name, language in pairs]
        endings = list(languages)
    if all((folder / name).is_file() for name in exact):
        return _join(folder, exact)
    groups: dict[str, dict[str, str]] = {}  # file name by its ending, by stem
    for path in _plain_files(folder) if parallel else sorted(folder.iterdir()):
        name = without_compression(path.name)
        ending = file_language(path.name) if parallel else name.suffix
        if split_name(path.name) == split and ending in endings:
            groups.setdefault(name.stem, {})[str(ending)] = path.name
    whole = [group for group in groups.values() if len(group) == len(endings)]
    if len(whole) != 1 or (not parallel and len(names) > 1):
        wanted = " and ".join(exact)
        why = f"there {'is no' if not whole else 'is more than one set of files for'} {wanted}"
        raise _ambiguous(folder, why)
    return _join(folder, [whole[0][ending] for ending in endings])


def _plain_files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and detect_format(path.name) == "text"
    ]


def _ambiguous(folder: Path, why: str, todo: str = "Rename them") -> DataError:
    names = [path.name for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    listed = f"It has {', '.join(names[:MAX_LISTED])}{more}." if names else "It is empty."
    return DataError(
        make_printable(f"{why}. {listed}"),
        where=make_printable(str(folder)),
        todo=f"{todo}, or name the files with --train, --dev and --set data.test=….",
    )
