"""Results in a run folder: no text overwrites another's result, and merging loses nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from evaluating import HELD_OUT, evaluate_small, sides, train_small
from hypothesis import given
from hypothesis import strategies as st
from killing import dies_at
from test_cli import heed

from heed.errors import HeedError
from heed.evaluate.evaluate_run import _evaluate, evaluate_run
from heed.evaluate.job import Options
from heed.runs import results_file
from heed.runs.results_file import SAME_KEYS, merge_results, unique_set_name

QUICK = ("--bootstrap", "0", "--device", "cpu")
pytestmark = pytest.mark.usefixtures("own_cache")


def results(run: Path) -> dict[str, Any]:
    return results_file.read_results(run)


def another(text: Path, folder: str) -> list[str]:
    """Files named `test` in another folder, with other sentences."""
    (text / folder).mkdir(exist_ok=True)
    for suffix in ("en", "fr"):
        lines = (text / f"train.{suffix}").read_text(encoding="utf-8").splitlines(keepends=True)
        start = 3 * (1 + sum(map(ord, folder)) % 20)
        (text / folder / f"test.{suffix}").write_text("".join(lines[start : start + 3]))
    return sides(text / folder, "test")


# ------------------------------------------------------------------------------- one name, one text


def test_files_of_one_name_do_not_overwrite_each_other(run: Path, text: Path) -> None:
    first = evaluate_small(run, test=sides(text, "test"))
    kept = (run / "translations" / "test.tsv").read_bytes()
    others = [evaluate_small(run, test=another(text, folder)) for folder in ("news", "talks")]
    names = [result["split"] for result in (first, *others)]
    assert names == ["test", "news-test", "talks-test"]
    assert (run / "translations" / "test.tsv").read_bytes() == kept
    for result in (first, *others):
        assert results(run)[result["split"]] == result
        rows = (run / "translations" / f"{result['split']}.tsv").read_text().splitlines()
        assert len(rows) == 1 + result["texts"]
    # The same text has the name that it had, wherever it lies now.
    moved = text / "elsewhere"
    moved.mkdir()
    for path in map(Path, another(text, "news")):
        path.rename(moved / path.name)
    assert evaluate_small(run, test=sides(moved, "test"))["split"] == "news-test"


def test_files_do_not_take_the_names_of_recipe_sets(run: Path, text: Path) -> None:
    """`dev` and `again` are sets of the recipe, even if not evaluated yet."""
    (text / "mine").mkdir()
    for name in ("dev", "again"):
        for suffix in ("en", "fr"):
            content = (text / "mine" / f"{name}.{suffix}").write_text
            content("The cat.\n" if suffix == "en" else "Le chat.\n")
        assert evaluate_small(run, test=sides(text / "mine", name))["split"] == f"mine-{name}"


def test_a_changed_name_is_reported(run: Path, text: Path) -> None:
    files = [word for file in sides(text, "test") for word in ("--test", file)]
    assert heed("evaluate", str(run), *files, *QUICK).returncode == 0
    files = [word for file in another(text, "said") for word in ("--test", file)]
    answer = heed("evaluate", str(run), *files, *QUICK)
    assert "saved as 'said-test'" in " ".join(answer.stderr.split())


@given(
    contents=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    folders=st.lists(st.sampled_from(["x", "y"]), min_size=12, max_size=12),
    taken=st.sets(st.sampled_from(["test", "x-test", "test-2"])),
)
def test_every_text_has_a_unique_name(
    contents: list[str], folders: list[str], taken: set[str]
) -> None:
    before: dict[str, Any] = {}
    for content, folder in zip(contents, folders, strict=False):
        name = unique_set_name("test", [f"{folder}/test.en"], content, before, taken)
        assert name not in taken
        assert before.get(name, {"hash": content})["hash"] == content
        before[name] = {"hash": content}
    assert len(before) == len({*contents}), "one text, one name"


# --------------------------------------------------------------------------------- merging


def test_two_sets_can_be_evaluated_at_the_same_time(run: Path) -> None:
    """A result saved during another evaluation is not lost."""
    quick = Options(resamples=0, metrics=("bleu",))

    def score(split: str, meanwhile: Callable[[Any], None] | None = None) -> None:
        evaluate_run(
            run, replace(quick, split=split), device="cpu", notify=print, on_result=meanwhile
        )

    (run / results_file.RESULTS).unlink(missing_ok=True)
    score("dev", lambda _: score("train"))
    assert {"dev", "train"} <= results(run).keys()


def test_results_saved_at_one_instant_are_all_kept(tmp_path: Path) -> None:
    start = Barrier(8)

    def save(name: str) -> None:
        start.wait()
        with results_file.saving_results(tmp_path):
            results_file.save_result(tmp_path, name, {"resamples": 0})

    with ThreadPoolExecutor(8) as pool:
        for attempt in range(5):
            names = [f"{attempt}-{number}" for number in range(8)]
            for answer in [pool.submit(save, name) for name in names]:
                answer.result()
            assert {*names} <= results(tmp_path).keys()


def test_two_texts_of_one_name_evaluated_at_the_same_time_are_both_saved(
    run: Path, text: Path
) -> None:
    """Both begin with the same free name; the one that ends later gets another."""
    files = [another(text, folder) for folder in ("one", "two")]
    for path in map(Path, (name for names in files for name in names)):
        path.rename(path.with_stem("aligned"))
    quick = Options(resamples=0, metrics=("bleu",))

    def score(folder: str, before_saving: Callable[[], object]) -> str:
        options = replace(quick, test=sides(text / folder, "aligned"))
        result, save = _evaluate(run, options, device="cpu", notify=print)
        before_saving()
        save()
        return str(result["split"])

    names: list[str] = []
    names.append(score("one", lambda: names.append(score("two", lambda: None))))
    assert names == ["aligned", "one-aligned"]
    assert {*names} <= results(run).keys()
    tables = [(run / "translations" / f"{name}.tsv").read_text() for name in names]
    assert tables[0] != tables[1]


def test_fewer_metrics_do_not_discard_more(run: Path) -> None:
    whole = evaluate_small(run, split="again", metrics=("bleu", "chrf", "ter"))
    less = evaluate_small(run, split="again", metrics=("bleu",), resamples=0)
    assert "ter" not in less
    assert results(run)["again"] == whole | {"looks": whole["looks"] + 1}
    other = evaluate_small(run, split="again", metrics=("bleu",), resamples=0, decode={"beam": 2})
    assert results(run)["again"] == other  # what another search wrote is another result


def test_metrics_of_two_evaluations_are_merged(run: Path) -> None:
    first = evaluate_small(run, split="dev", metrics=("bleu",), resamples=30, decode={"beam": 2})
    second = evaluate_small(
        run, split="dev", metrics=("bleu", "chrf"), resamples=0, decode={"beam": 2}
    )
    both = results(run)["dev"]
    assert both["interval"] == first["interval"]
    assert both["chrf"] == second["chrf"]
    assert both["signature"]["bleu"] == first["signature"]["bleu"]
    assert both["clean"]["chrf"] == second["clean"]["chrf"]
    assert both["clean"]["interval"] == first["clean"]["interval"]


figures = st.recursive(
    st.integers(0, 9),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)


@given(
    old=st.dictionaries(st.sampled_from("abcd"), figures),
    new=st.dictionaries(st.sampled_from("abcd"), figures),
    samples=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    differs=st.none() | st.sampled_from(SAME_KEYS),
)
def test_merged_results(
    old: dict[str, Any], new: dict[str, Any], samples: tuple[int, int], differs: str | None
) -> None:
    """Values of the result with more samples and all keys of both; the new one if they differ."""
    old, new = old | {"resamples": samples[0]}, new | {"resamples": samples[1]}
    if differs is not None:
        assert merge_results(old | {differs: "other"}, new) == new
        return
    both = merge_results(old, new)
    more_samples, other = (old, new) if samples[0] > samples[1] else (new, old)
    assert both.keys() == more_samples.keys() | other.keys()
    assert both["resamples"] == max(samples)
    assert merge_results(more_samples, both) == both
    for key, value in more_samples.items():
        assert both[key] == value or isinstance(value, dict)


# --------------------------------------------------------------------- files that cannot be written


def test_results_are_printed_before_a_write_error(text: Path) -> None:
    run = train_small(text, "translate", "run-full", train={"steps": 2})
    (run / "translations").write_text("no folder")
    files = [word for file in sides(text, "test") for word in ("--test", file)]
    answer = heed("evaluate", str(run), *files, *QUICK, "--json")
    assert answer.returncode == 2
    assert json.loads(answer.stdout)["split"] == "test"
    assert "could not be saved" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_results_are_saved_before_they_are_printed(run: Path, text: Path) -> None:
    """`heed evaluate RUN | head -1` keeps everything: a closed pipe ends only the printing."""
    (run / results_file.RESULTS).unlink(missing_ok=True)
    (run / "translations" / "dev.tsv").unlink(missing_ok=True)

    def break_pipe(_: Any) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        evaluate_run(
            run,
            Options("dev", metrics=("bleu",), resamples=0),
            device="cpu",
            notify=print,
            on_result=break_pipe,
        )
    assert results(run)["dev"]["texts"] == HELD_OUT
    assert (run / "translations" / "dev.tsv").exists()


def test_messages_do_not_share_the_pipe_of_the_result(run: Path) -> None:
    answer = heed("evaluate", str(run), "--split", "dev", *QUICK)
    assert "Translating" in answer.stderr
    assert "Translating" not in answer.stdout


def test_names_of_results_are_never_hidden(run: Path, text: Path) -> None:
    """Files given by `../` have their folder's real name, and a leading dot is left out."""
    assert heed("evaluate", str(run), *_as_flags(sides(text, "test")), *QUICK).returncode == 0
    (text / "inner").mkdir(exist_ok=True)
    (text / "outer").mkdir(exist_ok=True)
    for path in map(Path, another(text, ".secret")):
        path.with_name(path.name).replace(text / "outer" / path.name)
    answer = heed(
        "evaluate",
        str(run),
        *_as_flags([f"../outer/test.{suffix}" for suffix in ("en", "fr")]),
        *QUICK,
        cwd=text / "inner",
    )
    assert answer.returncode == 0, answer.stderr
    for path in map(Path, another(text, ".hidden")):
        path.replace(path.with_name(f".{path.name.removeprefix('test.')}"))
    dotted = [str(text / ".hidden" / f".{suffix}") for suffix in ("en", "fr")]
    assert evaluate_small(run, test=dotted)["split"] == "hidden-test"
    assert "outer-test" in results(run)
    names = [path.name for path in (run / "translations").iterdir()]
    assert not [name for name in (*names, *results(run)) if name.startswith(".")]


def _as_flags(files: list[str]) -> list[str]:
    return [word for file in files for word in ("--test", file)]


def test_a_folder_for_sentences_is_an_error_before_the_work(run: Path, text: Path) -> None:
    files = [word for file in sides(text, "test") for word in ("--test", file)]
    answer = heed("evaluate", str(run), *files, *QUICK, "--sentences", str(text))
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"{text}: this is a folder." in answer.stderr
    scored = heed("score", files[1], "--ref", files[1], "--sentences", str(text))
    assert (scored.returncode, "this is a folder" in scored.stderr) == (2, True)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_unreadable_results_are_an_error(
    run: Path, text: Path, tmp_path: Path, content: str
) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run"))
    (run / "evaluation.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(HeedError, match="Move this file away, and evaluate again"):
        evaluate_small(run, test=sides(text, "test"))


# -------------------------------------------------------------------------- test at training's end


@pytest.mark.slow
def test_a_resumed_run_is_evaluated_on_test_once(text: Path) -> None:
    """`train.evaluate_test` also holds after `heed resume`."""
    tables: dict[str, Any] = {
        "data": {"test": sides(text, "test")},
        "train": {"steps": 4, "evaluate_test": True, "evaluate_every": 2},
    }
    with dies_at(3):
        train_small(text, "translate", "run-stopped", **tables)
    run = text / "run-stopped"
    assert not (run / "evaluation.json").exists()
    with pytest.warns(UserWarning, match="not finished; these are its best weights so far"):
        early = evaluate_small(run)
    assert early["checkpoint"]["step"] == 2
    assert results(run)["test"] == early
    warned = heed("translate", str(run), "The cat.", "--device", "cpu").stderr
    so_far = "its training is not finished; these are its best weights so far."
    assert warned.splitlines()[0] == f"heed: {run}: {so_far}"
    answer = heed("resume", str(run), "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    assert results(run)["test"]["texts"] == HELD_OUT
    assert results(run)["test"]["checkpoint"]["step"] == 4
    kept = (run / "evaluation.json").read_bytes()
    again = heed("resume", str(run), "--device", "cpu")
    assert "Translating" not in again.stdout
    assert (run / "evaluation.json").read_bytes() == kept
