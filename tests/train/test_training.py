"""What a recipe can ask of training, each through the engine on small real text."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from heed.config import Recipe
from heed.data.batching.batch import Batch
from heed.errors import ConfigError, DataError, HeedError, StoppedError
from heed.runs.best_weights import chosen_evaluation
from heed.runs.history import flatten_metrics
from heed.runs.run import Run
from heed.train import checkpoint, estimate, validate
from heed.train import run as train_run
from heed.train.build_loop import build_loop
from heed.train.curves import draw_curves
from heed.train.objective import Objective
from heed.train.prepare import setup
from heed.train.prepare.setup import prepare
from heed.train.recorder import is_finite

QUIET = Console(quiet=True)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Labeled lines whose label says whether there is an "a" among their letters."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(3, 9))) for _ in range(160)]
    labeled = [f"{'with' if 'a' in line else 'without'}\t{line}" for line in lines]
    (tmp_path / "train.tsv").write_text("\n".join(labeled[:120]))
    (tmp_path / "dev.tsv").write_text("\n".join(labeled[100:]))
    (tmp_path / "train.txt").write_text("\n".join(lines))
    return tmp_path


def make_recipe(text: Path, task: str = "classify", **tables: Any) -> Recipe:
    names = {"classify": ["train.tsv"], "generate": ["train.txt"]}[task]
    data = {"train": [str(text / name) for name in names]} | tables.pop("data", {})
    train = {"steps": 6, "batch_size": 16, "warmup": 2} | tables.pop("train", {})
    model = {"layers": 1, "width": 16, "heads": 2, "dropout": 0.0} | tables.pop("model", {})
    return Recipe.of(
        {"task": task, "data": data, "train": train, "model": model, **tables}
        | {"tokenizer": {"kind": "word"}}
    )


def trained(recipe: Recipe, folder: Path) -> Run:
    return train_run.start(recipe, folder, device="cpu", console=QUIET)


def scores(run: Run, event: str = "evaluate") -> list[dict[str, Any]]:
    return [line for line in run.metrics() if line["event"] == event]


def test_a_classifier_learns_a_rule(text: Path) -> None:
    recipe = make_recipe(
        text,
        data={"dev": [str(text / "dev.tsv")]},
        train={"steps": 150, "lr": 5e-3, "best_metric": "dev/accuracy"},
    )
    run = trained(recipe, text / "run")
    assert max(line["dev"]["accuracy"] for line in scores(run)) > 0.9


def test_what_train_has_too_is_scored_apart(text: Path) -> None:
    run = trained(make_recipe(text, data={"dev": [str(text / "dev.tsv")]}), text / "run")
    assert {"dev", "dev-clean"} <= scores(run)[-1].keys()


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_a_test_set_that_overlaps_with_train_is_reported_at_the_start(
    text: Path, task: str
) -> None:
    """Only `data.sets` were; of test one learned it after training, in a line of its scores."""
    test = {"classify": "dev.tsv", "generate": "train.txt"}[task]
    recipe = make_recipe(text, task, data={"test": [str(text / test)]})
    said: list[str] = []
    parts = prepare(recipe, _run(text), device=CPU, say=said.append)
    (line,) = [line for line in said if line.startswith("test: ")]
    assert "also in train" in line
    assert line.endswith("Report scores on the clean part as well")
    assert not any(name.startswith("test") for name in parts.sets)


def test_a_test_set_that_cannot_be_read_does_not_stop_training(text: Path) -> None:
    (text / "bad.tsv").write_bytes(b"with\t\xff\n")
    for name in ("none.tsv", "bad.tsv"):
        recipe = make_recipe(text, data={"test": [str(text / name)]})
        said: list[str] = []
        prepare(recipe, Run.create(text / name[:3], recipe), device=CPU, say=said.append)
        assert not any(line.startswith("test: ") for line in said)


def test_named_sets_and_train_are_scored_by_the_same_path(text: Path) -> None:
    recipe = make_recipe(
        text,
        data={"dev": [str(text / "dev.tsv")], "sets": {"again": [str(text / "dev.tsv")]}},
        train={"evaluate_train": True},
    )
    line = scores(trained(recipe, text / "run"))[-1]
    assert line["again"] == line["dev"]
    assert set(line["train"]) == set(line["dev"])


def test_without_dev_a_share_of_train_is_set_aside(text: Path) -> None:
    said: list[str] = []
    parts = prepare(make_recipe(text), _run(text), device=CPU, say=said.append)
    train, dev = ({int(row) for row in b.rows} for b in (parts.train, parts.sets["dev"]))
    assert train
    assert dev
    assert not train & dev
    assert len(train | dev) == 120
    assert any(f"{len(dev)} of the 120 texts of train, set aside" in line for line in said)


def test_texts_are_counted_not_their_windows(text: Path) -> None:
    said: list[str] = []
    recipe = make_recipe(text, "generate", data={"max_length": 4})
    parts = prepare(recipe, _run(text), device=CPU, say=said.append)
    (line,) = [line for line in said if "set aside" in line]
    count, total = (int(word) for word in line.split() if word.isdecimal())
    assert count < len(parts.sets["dev"].rows)
    assert total == len(parts.train.store)


@pytest.mark.parametrize("how", [{}, {"pack": True}, {"windows": "random"}])
def test_a_dry_run_tells_texts_from_windows(text: Path, how: dict[str, Any]) -> None:
    """Lines of three to nine words, each with a mark; packed ones are read across windows."""
    console = Console(file=io.StringIO(), record=True, width=200)
    data = {"dev": [str(text / "dev.txt")], "max_length": 4} | how
    (text / "dev.txt").write_text("a b c\na b c d\na b c d e f g h\n")
    estimate.dry_run(make_recipe(text, "generate", data=data), device="cpu", console=console)
    lines = (text / "train.txt").read_text().splitlines()
    windows = sum(-(-(len(line.split()) + 1) // 4) for line in lines)
    learnt = "160" if how else f"160 ({windows} windows)"
    assert f"texts       {learnt} to learn from, 3 (6 windows) in dev\n" in console.export_text()


def test_a_figure_that_cannot_be_drawn_costs_no_run(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Run) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(train_run, "draw_curves", broken)
    with pytest.raises(RuntimeError, match="no ink"):
        trained(make_recipe(text), text / "run")
    assert Run.open(text / "run").finished


def test_the_same_bytes_read_in_another_way_have_other_words(text: Path) -> None:
    words = []
    for name in ("rows.txt", "rows.jsonl"):
        (text / name).write_text('{"text": "a b"}\n' * 40, encoding="utf-8")
        recipe = make_recipe(text, "generate", data={"train": [str(text / name)]})
        parts = prepare(recipe, Run.create(text / name[-3:], recipe), device=CPU, say=QUIET.print)
        words.append(parts.tokenizer.tokenize('{"text": "a b"}'))
    assert words[0] != words[1]


def test_nothing_is_said_to_be_set_aside_beside_a_dev_set(text: Path) -> None:
    said: list[str] = []
    recipe = make_recipe(text, data={"dev": [str(text / "dev.tsv")]})
    prepare(recipe, _run(text), device=CPU, say=said.append)
    assert not any("set aside" in line for line in said)


def test_the_last_lines_of_one_text_are_said_to_be_set_aside(text: Path) -> None:
    said: list[str] = []
    prepare(
        make_recipe(text, "generate", data={"unit": "file"}),
        _run(text),
        device=CPU,
        say=said.append,
    )
    assert any("the last 5% of the lines of each file of train, set aside" in x for x in said)


def _run(folder: Path) -> Run:
    return Run.create(folder / "prepared", make_recipe(folder))


def test_evaluation_leaves_no_trace(text: Path) -> None:
    """No randomness drawn, no graph built, dropout off, the mode restored, the same twice."""
    recipe = make_recipe(text, model={"dropout": 0.5})
    parts = prepare(recipe, _run(text), device=CPU, say=print)
    parts.model.train()
    before = torch.get_rng_state()
    first, second = (
        validate.validate(parts.model, parts.sets["dev"], device=CPU) for _ in range(2)
    )
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert parts.model.training
    assert all(p.grad is None for p in parts.model.parameters())


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_accumulated_batches_are_one_big_batch(text: Path, task: str) -> None:
    """Two micro-batches make the update that both texts together make."""
    weights = []
    for size, accumulate in ((32, 1), (16, 2)):
        train = {"batch_size": size, "accumulate": accumulate, "steps": 1, "optimizer": "sgd"}
        exact = {"lr": 0.1, "momentum": 0.0, "clip": 0.0, "precision": "float32"}
        recipe = make_recipe(text, task, train=train | exact)
        run = Run.create(text / f"run-{size}", recipe)
        parts = prepare(recipe, run, device=CPU, say=print)
        made = build_loop(parts, run, say=print)
        plan = parts.train.plan(0)
        whole = [parts.train.batch(plan, i) for i in range(accumulate)]
        if accumulate == 1:
            rows = whole[0]
        else:
            halves = [_rows(rows, slice(0, 16)), _rows(rows, slice(16, 32))]
            whole = halves
        made.update(whole)
        weights.append(torch.cat([p.detach().flatten() for p in parts.model.parameters()]))
    assert torch.allclose(weights[0], weights[1], atol=1e-6, rtol=0)


def _rows(batch: Batch, part: slice) -> Batch:
    from dataclasses import replace

    targets = batch.targets[part]
    return replace(
        batch,
        ids=batch.ids[part],
        targets=targets,
        mask=batch.mask[part],
        count=int((targets != -100).sum()),
        rows=batch.rows[part],
    )


def test_gradients_do_not_leak_between_steps(text: Path) -> None:
    run = _run(text)
    parts = prepare(make_recipe(text), run, device=CPU, say=print)
    made = build_loop(parts, run, say=print)
    for batches in made.loader.iterate(0, 2):
        made.update(batches)
        assert all(p.grad is None for p in parts.model.parameters())


def test_early_stopping_stops(text: Path) -> None:
    recipe = make_recipe(text, train={"steps": 500, "evaluate_every": 1, "patience": 2, "lr": 1e-9})
    run = trained(recipe, text / "run")
    assert len(scores(run)) < 100
    assert run.finished


def test_a_score_that_is_no_number_is_the_worst(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation is the best yet; not for ever, if it is NaN."""
    true, scored = validate.validate, list[float]()

    def first_none(*arguments: Any, **named: Any) -> dict[str, float]:
        found = true(*arguments, **named)
        scored.append(found["loss"])
        return found | ({"loss": math.nan} if len(scored) == 1 else {})

    monkeypatch.setattr("heed.train.recorder.validate", first_none)
    recipe = make_recipe(text, train={"evaluate_every": 2, "patience": 2, "lr": 1e-2})
    run = trained(recipe, text / "run")
    best = chosen_evaluation(run.metrics(), "dev/loss")
    _, progress = checkpoint.load_newest(run.checkpoints, print)
    assert best is not None
    assert best["dev"]["loss"] == progress["best"] == min(scored[1:])


def test_the_mean_of_the_last_weights_is_kept_only_if_better(text: Path) -> None:
    recipe = make_recipe(text, train={"steps": 12, "evaluate_every": 3, "average_checkpoints": 3})
    run = trained(recipe, text / "run")
    (line,) = scores(run, "average")
    best = min(scores(run), key=lambda line: line["dev"]["loss"])["dev"]["loss"]
    assert line["kept"] == (line["dev"]["loss"] < best)
    assert len(list(run.checkpoints.glob("recent-*"))) == 4  # the checkpoint before has one more


def test_a_run_begins_from_another(text: Path) -> None:
    first = trained(make_recipe(text, "generate"), text / "first")
    recipe = make_recipe(
        text, init={"from": str(first.folder)}, train={"steps": 1, "warmup": 0, "lr": 1e-12}
    )
    second = trained(recipe, text / "second")
    before, after = load_file(first.weights_path), load_file(second.weights_path)
    name = "embedding.table.weight"
    assert torch.allclose(before[name], after[name], atol=1e-6)
    assert second.tokenizer_path.read_bytes() == first.tokenizer_path.read_bytes()


def test_a_masked_language_model_learns_from_both_sides(text: Path) -> None:
    recipe = make_recipe(text, "generate", train={"objective": "masked", "steps": 30, "lr": 5e-3})
    lines = scores(trained(recipe, text / "run"))
    assert lines[-1]["dev"]["loss"] < lines[0]["dev"]["loss"] + 0.1


def test_packed_training_runs(text: Path) -> None:
    recipe = make_recipe(text, "generate", data={"pack": True, "max_length": 32})
    assert trained(recipe, text / "run").finished


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"data": {"pack": True}}, "pack is for causal language models"),
        ({"train": {"objective": "masked"}}, "is for task 'generate'"),
        ({"model": {"position": "learned", "max_positions": 8}}, "beyond the 8 positions"),
        ({"train": {"best_metric": "dev/los"}}, "Did you mean 'dev/loss'"),
        ({"train": {"optimizer": "adamx"}}, "Did you mean 'adam"),
        ({"train": {"schedule": "cosin"}}, "Did you mean 'cosine'"),
        ({"train": {"class_weights": {"witout": 2.0}}}, "Did you mean 'without'"),
        ({"train": {"betas": [0.9]}}, "betas must be two numbers"),
        ({"train": {"betas": [0.9, 0.98, 0.999]}}, "betas must be two numbers"),
        ({"train": {"betas": [0.9, 1.0]}}, r"betas\.1 cannot be 1\.0"),
    ],
)
def test_nonsense_is_refused(text: Path, tables: dict[str, Any], said: str) -> None:
    """Before a tokenizer is learnt, and with nothing in the way of a second try."""
    with pytest.raises(ConfigError, match=said):
        trained(make_recipe(text, **tables), text / "run")
    assert not (text / "run").exists()
    assert not (text / "cache").exists()


def test_nonsense_found_late_leaves_no_folder(text: Path) -> None:
    """That dev has a part which is in train, too, is known when both were read."""
    apart = text / "apart.tsv"
    apart.write_text("with\ta a a a a a a a a a a\nwithout\tb b b b b b b b b b b\n")
    recipe = make_recipe(text, data={"dev": [str(apart)]}, train={"best_metric": "dev-clean/loss"})
    with pytest.raises(ConfigError, match="best_metric cannot be 'dev-clean/loss'"):
        trained(recipe, text / "run")
    assert not (text / "run").exists()


def test_a_missing_file_leaves_no_folder(text: Path) -> None:
    recipe = make_recipe(text, data={"train": [str(text / "nothing.tsv")]})
    with pytest.raises(DataError, match="nothing"):
        trained(recipe, text / "run")
    assert not (text / "run").exists()


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_before_the_first_update_leaves_no_folder(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "get_tokenizer", interrupted)
    with pytest.raises(StoppedError, match="before the first step") as stopped:
        trained(make_recipe(text), text / "run")
    assert stopped.value.code == 130
    assert not (text / "run").exists()


def test_an_interrupt_later_leaves_what_was_learnt(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_run, "draw_curves", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(make_recipe(text), text / "run")
    assert Run(text / "run").metrics()


def poison(monkeypatch: pytest.MonkeyPatch, from_call: int, to_call: int) -> None:
    """Losses that are not finite from one call to another."""
    calls, true = 0, Objective.forward

    def poisoned(self: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        total, right = true(self, batch)
        return total * (torch.nan if from_call <= calls <= to_call else 1.0), right

    monkeypatch.setattr(Objective, "forward", poisoned)


def test_a_loss_that_is_not_finite_is_skipped(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 2, 3)
    run = trained(make_recipe(text, train={"log_every": 1}), text / "run")
    lines = scores(run, "train")
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2, 2, 2]
    weights: dict[str, Tensor] = load_file(run.weights_path)
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


def test_without_a_counted_step_no_loss_is_reported(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the metrics, which stay JSON, nor to a person or a tracker; the rest is drawn."""
    poison(monkeypatch, 2, 3)
    recipe = make_recipe(text, train={"log_every": 1, "evaluate_every": 1})
    console = Console(file=io.StringIO(), record=True, width=200)
    run = train_run.start(recipe, text / "run", device="cpu", console=console)
    unknown = {"loss": None, "accuracy": None}
    for line in run.metrics():
        means = line["seen"] if line["event"] == "evaluate" else {key: line[key] for key in unknown}
        assert (means == unknown) == (line["step"] in (2, 3))
        assert (flatten_metrics("train", means) == {}) == (line["step"] in (2, 3))
    assert "NaN" not in run.metrics_path.read_text()
    said = console.export_text()
    assert "step 2/6  loss –  accuracy –  " in said
    assert "step 2  training loss – accuracy –  ·  dev loss " in said
    assert (run.figures / "loss.png").stat().st_size


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_number_that_is_not_finite_is_found(bad: float, dtype: torch.dtype) -> None:
    weight = torch.linspace(-1.0, 1.0, 1000).to(dtype)
    assert is_finite(weight)
    for place in (0, 501, 999):
        broken = weight.clone()
        broken[place] = bad
        assert not is_finite(broken)
    assert is_finite(weight[:0])


def test_a_training_that_ends_in_nan_says_so(text: Path) -> None:
    """Too few steps are skipped to stop it before."""
    with pytest.raises(HeedError, match=r"ended in NaN.*lower train\.lr than 1e\+30"):
        trained(make_recipe(text, train={"lr": 1e30, "steps": 4}), text / "run")
    assert not Run(text / "run").finished


def test_too_many_of_them_stop_the_run_and_keep_the_batch(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 1, 99)
    recipe = make_recipe(text, train={"max_skipped_steps": 2})
    with pytest.raises(HeedError, match="not finite in 3 steps in a row") as error:
        trained(recipe, text / "run")
    (batch,) = (text / "run").glob("batch-*.safetensors")
    step = batch.stem.partition("-")[2]
    assert f"the last at step {step}," in error.value.what
    assert error.value.todo is not None
    assert error.value.todo.startswith("Train a new run with a lower train.lr")
    assert f"saved in {batch}." in error.value.todo


def room_for(texts: int, true: Callable[..., Any]) -> Callable[..., Any]:
    """An objective that runs out of memory over larger batches."""

    def forward(self: Objective, batch: Batch) -> Any:
        if len(batch.ids) > texts:
            raise torch.OutOfMemoryError("no memory left")
        return true(self, batch)

    return forward


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_batches_that_do_not_fit_are_halved_where_allowed(
    text: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """And that changes nothing but rounding."""
    exact = {"optimizer": "sgd", "lr": 0.1, "precision": "float32"}
    recipe = make_recipe(text, task, train={"split_on_oom": True} | exact)
    whole = load_file(trained(recipe, text / "whole").weights_path)
    monkeypatch.setattr(Objective, "forward", room_for(5, Objective.forward))
    run = trained(recipe, text / "halved")
    halved = load_file(run.weights_path)
    assert all(torch.allclose(whole[name], halved[name], atol=1e-6) for name in whole)
    _, progress = checkpoint.load_newest(run.checkpoints, print)
    assert progress["batch_splits"] == 4


def test_running_out_of_memory_names_the_setting(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Objective, "forward", room_for(0, Objective.forward))
    with pytest.raises(HeedError, match=r"train\.batch_size=8 --set train\.accumulate=2"):
        trained(make_recipe(text), text / "run")
    assert not (text / "run").exists()  # nothing is in the way of a second try


def test_a_full_disk_says_what_to_do(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heed.models.weights.save_file", full)
    with pytest.raises(HeedError, match=r"the disk is full\. Free some space"):
        trained(make_recipe(text), text / "run")
    assert not list((text / "run" / "checkpoints").glob(".draft-*"))


def test_metrics_keep_the_clock_apart(text: Path) -> None:
    run = trained(make_recipe(text), text / "run")
    for line in run.metrics_path.read_text().splitlines():
        assert set(json.loads(line)["time"]) == {"unix", "seconds", "tokens_per_second", "checksum"}


@pytest.mark.parametrize("far", [1e294, float("inf"), float("nan")])
def test_perplexities_beyond_any_axis_are_not_drawn(far: float, tmp_path: Path) -> None:
    run = Run(tmp_path)
    recipe = Recipe.of({"task": "generate", "data": {"train": ["a.txt"]}})
    (tmp_path / "recipe.toml").write_text(recipe.toml(), encoding="utf-8")
    lines = [
        {"event": "evaluate", "step": step, "epoch": 1, "seen": {"loss": 5.0}}
        | {"dev": {"loss": 5.0, "perplexity": value}}
        for step, value in enumerate([far, 1e6, 50.0], 1)
    ]
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    draw_curves(run)
    assert (run.figures / "perplexity.png").stat().st_size


def test_an_evaluation_hook_can_end_a_run_which_then_resumes_to_the_same_scores(text: Path) -> None:
    recipe = make_recipe(text, train={"evaluate_every": 2})
    calls: list[tuple[int, int, float]] = []

    def record(step: int, steps: int, scores: dict[str, dict[str, float]]) -> None:
        calls.append((step, steps, scores["dev"]["loss"]))

    def stop(step: int, steps: int, scores: dict[str, dict[str, float]]) -> None:
        record(step, steps, scores)
        if step == 4:
            raise StoppedError("Stopped by the hook.")

    train_run.start(recipe, text / "whole", device="cpu", console=QUIET, after_evaluation=record)
    whole, calls = calls, []
    assert [call[:2] for call in whole] == [(2, 6), (4, 6), (6, 6)]
    with pytest.raises(StoppedError, match="by the hook"):
        train_run.start(recipe, text / "ended", device="cpu", console=QUIET, after_evaluation=stop)
    assert not Run(text / "ended").finished
    train_run.resume(text / "ended", device="cpu", console=QUIET, after_evaluation=record)
    assert calls == [*whole[:2], *whole[1:]]  # step 4 had no checkpoint: it is evaluated again
