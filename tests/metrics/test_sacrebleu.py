"""`heed score` equals the `sacrebleu` command to the last digit that it prints."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_cli import heed

from heed.errors import HeedError
from heed.evaluate.score_files import score_files
from heed.evaluate.tables import render_scores

WIDTH = 12
METRICS = {"BLEU": "bleu", "chrF2": "chrf", "TER": "ter"}


def sacrebleu(*arguments: str, cwd: Path, seed: str | None = None) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SACREBLEU")}
    answer = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *arguments, "-q", "-nc", "-w", str(WIDTH)],
        cwd=cwd,
        env=env | ({"SACREBLEU_SEED": seed} if seed else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout


def scored(*arguments: str, cwd: Path) -> dict[str, Any]:
    answer = heed("score", *arguments, "--json", cwd=cwd)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def printed(value: float) -> float:
    """A number as sacreBLEU prints it."""
    return float(f"{value:.{WIDTH}f}")


@pytest.mark.parametrize(
    ("refs", "extra", "seed"),
    [(["ref"], [], None), (["ref", "ref2"], [], None), (["ref"], ["--seed", "7"], "7")],
    ids=["one-reference", "two-references", "another-seed"],
)
def test_scores_intervals_and_signatures(
    files: Path, refs: list[str], extra: list[str], seed: str | None
) -> None:
    wanted = ["-m", "bleu", "chrf", "ter", "--confidence"]
    theirs = json.loads(sacrebleu(*refs, "-i", "better", *wanted, cwd=files, seed=seed))
    named = [part for ref in refs for part in ("--ref", ref)]
    ours = scored("better", *named, *extra, cwd=files)
    assert len(theirs) == len(METRICS)
    for item in theirs:
        name = METRICS[item["name"]]
        assert printed(ours[name]) == item["score"]
        assert ours["signature"][name] == item["signature"]
        low, high = (ours["interval"][name][bound] for bound in ("low", "high"))
        assert printed((low + high) / 2) == item["confidence_mean"]
        assert printed((high - low) / 2) == item["confidence_var"]


def test_without_intervals(files: Path) -> None:
    theirs = json.loads(sacrebleu("ref", "-i", "better", cwd=files))
    ours = scored("better", "--ref", "ref", "--metric", "bleu", "--bootstrap", "0", cwd=files)
    assert (printed(ours["bleu"]), ours["signature"]["bleu"]) == (
        theirs["score"],
        theirs["signature"],
    )
    assert not ours["interval"]
    assert "chrf" not in ours


@pytest.fixture(scope="module")
def compared(files: Path) -> dict[str, Any]:
    return scored("better", "worse", "--ref", "ref", cwd=files)


def test_paired_randomization(files: Path, compared: dict[str, Any]) -> None:
    """p is sacreBLEU's, plus the trials that tie, which sacreBLEU leaves out."""
    wanted = ["-m", "bleu", "chrf", "ter", "--paired-ar"]
    theirs = json.loads(sacrebleu("ref", "-i", "better", "worse", *wanted, cwd=files))
    ours = compared["systems"]
    for key, name in METRICS.items():
        assert [system[name] for system in ours] == [system[key]["score"] for system in theirs]
        p = ours[1]["paired"][name]["p"]
        ties = name == "ter"  # a count of edits, so that many exchanges give the same
        assert p > theirs[1][key]["p_value"] if ties else p == theirs[1][key]["p_value"]
    assert compared["test"] == {"name": "approximate randomization", "trials": 10000, "seed": 12345}


def test_intervals_in_a_comparison_are_those_of_each_system_alone(
    files: Path, compared: dict[str, Any]
) -> None:
    alone = scored("worse", "--ref", "ref", cwd=files)
    assert compared["systems"][1]["interval"] == alone["interval"]
    assert compared["systems"][1]["signature"] == alone["signature"]


def test_sentence_scores(files: Path, tmp_path: Path) -> None:
    theirs = sacrebleu("ref", "-i", "worse", "-sl", "-b", "-f", "text", cwd=files).split()
    scored("worse", "--ref", "ref", "--sentences", str(tmp_path / "out.tsv"), cwd=files)
    rows = (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert [row.split("\t")[-1] for row in rows] == [f"{float(score):.4f}" for score in theirs]


def test_odd_lines_are_read_as_sacrebleu_reads_them(files: Path, tmp_path: Path) -> None:
    """Lines end at line feeds only, trailing white space is removed, gzip is decompressed."""
    odd = [
        "one two three four  \r",
        "five\rsix seven eight",
        "",
        "\ufeffnine ten",
        "a\u2028b c d e",
    ]
    (tmp_path / "hyp").write_bytes("\n".join(odd).encode())
    (tmp_path / "ref.gz").write_bytes(
        gzip.compress(b"one two three four\nfive six seven eight\n\nnine ten\na b c d e\n")
    )
    theirs = json.loads(sacrebleu("ref.gz", "-i", "hyp", "-m", "bleu", "chrf", cwd=tmp_path))
    ours = scored("hyp", "--ref", "ref.gz", "--bootstrap", "0", cwd=tmp_path)
    assert ours["texts"] == len(odd)
    for item in theirs:
        assert printed(ours[METRICS[item["name"]]]) == item["score"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hypotheses": ["short"]}, "short has 2 lines, .*ref 120."),
        ({"source": "short"}, "better has 120 lines, .*short 2."),
        ({"hypotheses": ["empty"]}, "empty: this file is empty."),
        ({"hypotheses": ["nowhere"]}, "nowhere: there is no such file."),
        ({"hypotheses": ["latin"]}, "latin:2: byte 4 of this line is not UTF-8."),
        ({"metrics": "bleau"}, "Did you mean 'bleu'?"),
        ({"metrics": ","}, "There is no metric ''"),
        ({"resamples": 2}, "bootstrap cannot be 2: it is 0 for none, or 100 to 100,000"),
        ({"resamples": -1}, "bootstrap cannot be -1"),
        ({"seed": 0}, "seed cannot be 0"),
    ],
)
def test_files_that_do_not_fit_are_an_error(
    files: Path, changes: dict[str, Any], said: str
) -> None:
    (files / "short").write_text("one\ntwo\n")
    (files / "empty").write_text("")
    (files / "latin").write_bytes(b"one\ncaf\xe9\n")
    kwargs: dict[str, Any] = {"hypotheses": ["better"], "source": None, "metrics": "bleu"}
    kwargs |= {"resamples": 0, "seed": None} | changes
    with pytest.raises(HeedError, match=said):
        score_files(
            [files / name for name in kwargs["hypotheses"]],
            [files / "ref"],
            kwargs["source"] and files / kwargs["source"],
            metrics=kwargs["metrics"],
            resamples=kwargs["resamples"],
            seed=kwargs["seed"],
        )


def test_a_missing_folder_is_an_error_before_anything_slow(files: Path) -> None:
    answer = heed("score", "better", "--ref", "ref", "--sentences", "no/where.tsv", cwd=files)
    assert answer.returncode == 2
    assert "no: there is no such folder." in answer.stderr


def test_output_for_the_terminal_is_tables(files: Path) -> None:
    few = ["--ref", "ref", "--src", "src", "--bootstrap", "100"]
    one = heed("score", "better", *few, cwd=files)
    assert one.returncode == 0, one.stderr
    for words in ("BLEU by source length", "best sentences", "worst sentences", "nrefs:1", "NLTK"):
        assert words in one.stdout
    two = heed("score", "better", "worse", *few, cwd=files)
    assert two.returncode == 0, two.stderr
    text = " ".join(two.stdout.split())
    for words in ("two-sided paired approximate rand", "compared with better", "10,000 trials"):
        assert words in text
    assert "not the recipes behind them" in text


def test_tables_of_seven_systems_fit_into_80_columns(files: Path) -> None:
    """Names may continue on the next line; numbers and p-values do not."""
    text = (files / "better").read_text()
    systems = [f"runs/{'system-with-a-long-name-' * (n % 3)}{n}.fr" for n in range(7)]
    (files / "runs").mkdir(exist_ok=True)
    for n, name in enumerate(systems):
        (files / name).write_text(text if n % 2 else (files / "worse").read_text())
    paths = [files / name for name in systems]
    kwargs: dict[str, Any] = {"metrics": "bleu", "resamples": 100, "seed": None}
    result = score_files(paths, [files / "ref"], files / "src", **kwargs).to_dict()
    screen = Console(file=StringIO(), width=80, color_system=None)
    screen.print(render_scores(result))
    assert isinstance(screen.file, StringIO)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for system in result["systems"]:
        scores = [system["bleu"], *(part["bleu"] for part in system["by_source_length"])]
        assert all(any(f"{score:.2f}" in line for line in lines) for score in scores)
    by_length = lines[lines.index(next(line for line in lines if "by source length" in line)) :]
    assert len(by_length) < 45, "a row or two for each system"


def test_a_looping_hypothesis_does_not_fill_the_screen(files: Path) -> None:
    lines = (files / "ref").read_text().splitlines()
    (files / "loop").write_text("\n".join(["and so on " * 500, *lines[1:]]) + "\n")
    answer = heed(
        "score", "loop", "--ref", "ref", "--bootstrap", "0", "--metric", "bleu", cwd=files
    )
    assert "(4,999 characters)" in " ".join(answer.stdout.split())
    assert len(answer.stdout.splitlines()) < 60
