"""Studies from Python: run one, open one that has begun, read its results, write reports.

The work is that of `heed study` and `heed report`: trials are processes of their own, so nothing of
the caller's is shared with them, and the same call goes on with a study that was stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heed.config import SECTIONS
from heed.config.recipe import toml_value
from heed.data.in_memory import Data
from heed.errors import ConfigError
from heed.notebook import render_table
from heed.plugins import PluginFiles, load_plugins
from heed.study import run_study as study_runs
from heed.study.recipe_comparison import HIDDEN_COLUMNS, SENTENCES_SHOWN
from heed.study.runner import RunOptions
from heed.study.status_table import StatusView
from heed.study.study_file import StudyFlags, find_task
from heed.study.study_results import StudyResults
from heed.study.study_texts import collect_texts
from heed.terminal import PlainConsole
from heed.train.python_arguments import TRAINING_SECTIONS


class Study(StudyResults):
    """A study and its results. `rows` and `table` are lists of rows that pandas takes."""

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row for each system: its keys, its scores, and its difference to the baseline."""
        return self.summary()

    @property
    def sentences(self) -> list[str]:
        """The verdicts in words; none before two final trials have finished."""
        return [] if self.comparison is None else self.comparison.sentences

    def report(
        self,
        out: str | Path,
        *,
        title: str | None = None,
        author: str | None = None,
        notes: str | None = None,
        examples: bool = True,
    ) -> Path:
        """Write the report of the study as `heed report` does; returns its path.

        The name ends in .html or .md. Without `examples`, no text of the corpus is in it.
        """
        words = {"title": title, "author": author, "notes": notes}
        return write_report(self.folder, out, **words, examples=examples)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._exploratory_notes, *self.sentences])

    def __repr__(self) -> str:
        first, rest = self.sentences[:SENTENCES_SHOWN], self.sentences[SENTENCES_SHOWN:]
        more = [f"… and {len(rest)} more: print(study)"] if rest else []
        lines = [self._headline(), *self._exploratory_notes, *first, *more]
        return "Study({})".format("\n  ".join(lines))

    def _repr_html_(self) -> str:
        """A row for each system and the verdicts, for notebooks."""
        hidden = {*HIDDEN_COLUMNS, "added", "set", "metric", "dev_sd", "tokens", "peak_memory"}
        hidden |= set() if self.failures else {"failed"}
        rows = [{k: v for k, v in row.items() if k not in hidden} for row in self.table]
        notes = [*self._exploratory_notes, *self.sentences]
        return render_table(rows, caption=self._headline(), notes=notes)

    @property
    def _exploratory_notes(self) -> list[str]:
        return [] if self.comparison is None else self.comparison.exploratory_notes

    def _headline(self) -> str:
        finished = sum(state.status == "finished" for state in self.trials)
        failed = f", {len(self.failures)} failed" if self.failures else ""
        systems = f"{len(self.systems)} system{'s' * (len(self.systems) != 1)}"
        trials = f"{finished} of {len(self.trials)} trials finished{failed}"
        return f"{self.folder}: {systems}, {trials}, {self.metric} on {self.set_name}"


def run_study(
    study: str | Path,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    train: Data | None = None,
    dev: Data | None = None,
    test: Data | None = None,
    out: str | Path | None = None,
    quick: bool = False,
    jobs: int | None = None,
    threads: int | None = None,
    minutes: float | None = None,
    reuse: str | Path | Sequence[str | Path] = (),
    device: str = "auto",
    on: str = "local",
    address: str | None = None,
    plugin: PluginFiles = None,
) -> Study:
    """Run a study, or go on with it, as `heed study` does; returns its results.

    `study` is a study file, the name of a shipped study, the folder of one that has begun, or a
    recipe with `vary={"model.position": ["rope", "none"]}`. `seeds` is a number or a list. `set`
    has the fixed keys, for all systems. `train`, `dev` and `test` are files or lists of texts, as
    `Translator.train` takes them, in place of all text of the recipes. Lists are written into the
    study's folder. Without `dev`, a share of train is set aside. `jobs` trials run at a time, each
    in a process of its own: by default one for each core, or one on a GPU. Ctrl-C stops it, and
    nothing is lost. With `on="ray"` trials run on the Ray cluster at `address` (HOST:PORT).
    """
    load_plugins(plugin)
    if train is None and (dev is not None or test is not None):
        what = "dev and test belong to other text than the recipe's: give train as well."
        raise ConfigError([what])
    texts = {"train": train, "dev": dev, "test": test}
    task = "" if train is None else find_task(study, quick=quick)
    names, contents = collect_texts(texts, task)
    flags = StudyFlags(
        vary=[f"{_full_key(key)}={_join(values)}" for key, values in (vary or {}).items()],
        seeds=_write_seeds(seeds),
        changes=[f"{_full_key(key)}={toml_value(value)}" for key, value in (set or {}).items()],
        data=None if data is None else str(data),
        quick=quick,
        threads=threads,
        texts=names,
    )
    folder, config = study_runs.locate_study(study, flags, None if out is None else Path(out))
    console = PlainConsole(file=sys.stderr, force_jupyter=False)
    with StatusView(console, folder, config, jobs) as view:
        plugins = [plugin] if isinstance(plugin, str | Path) else plugin or ()
        folders = [reuse] if isinstance(reuse, str | Path) else reuse
        options = RunOptions(
            jobs, device, minutes, [*map(Path, folders)], [*map(Path, plugins)], view
        )
        at = study_runs.Place(on, address)
        study_runs.run_study(folder, config, options, place=at, texts=contents)
    return Study.read(folder)


def open_study(folder: str | Path) -> Study:
    """Open a study by its folder, also while it runs."""
    return Study.read(folder)


def _full_key(key: str) -> str:
    """A key with its section, as `train` finds it: `position` is `model.position`."""
    keys = {section: SECTIONS[section].keys() for section in TRAINING_SECTIONS}
    sections = [section for section, names in keys.items() if key in names]
    return f"{sections[0]}.{key}" if sections else key  # else the study says what is wrong


def _join(values: Sequence[Any]) -> str:
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    return ",".join(map(toml_value, values))


def _write_seeds(seeds: int | Sequence[int] | None) -> str | None:
    """Seeds as the command line takes them: a number of them, or a list with commas.

    What is no number is written as it is: the study says what is wrong with it.
    """
    if seeds is None:
        return None
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        return str(seeds)
    return "".join(f"{seed}," for seed in seeds)


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    title: str | None = None,
    author: str | None = None,
    notes: str | None = None,
    examples: bool = True,
) -> Path:
    """Write the report of a run, of several runs, or of a study as `heed report` does.

    Returns its path: `out`, which ends in .html or .md, or report.html in the run or study. Without
    `examples`, no text of the corpus is in it.
    """
    from heed.report import write_report as files
    from heed.report.build_report import build_report, default_path
    from heed.report.run_report import ReportOptions

    names = [runs] if isinstance(runs, str | Path) else list(runs)
    path = default_path(names) if out is None else Path(out)
    files.check_ending(path)
    options = ReportOptions(title or "", author or "", notes or "", with_examples=examples)
    files.write_report(build_report(names, options), path)
    return path
