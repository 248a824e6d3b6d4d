"""How cost grows: fits find the truth, communication has its limits, the command measures."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_size import corpus_size, training_steps
from by_size.communication import (
    NVLINK,
    Link,
    all_reduce_bytes,
    all_reduce_seconds,
    compute_scaling,
    step_seconds,
)
from by_size.fits import fit_polynomial, fit_power_law
from by_size.page import fill, read_record
from by_size.record import Measurement, Point, Record
from by_size.summary import fit_all, scaling_rows
from by_size.training_steps import RANKS
from by_size.turns import OUT_OF_MEMORY, Job, Plan, measure_group
from common import RESULTS, ROOT, environment
from growth import QUESTIONS
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from heed.bench.timing import PROCESSOR, WALL, Work
from heed.config import POSITIONS

positive = st.floats(1e-6, 1e6)
sizes = st.lists(st.integers(1, 2**20), min_size=3, max_size=12, unique=True)
noisy = st.lists(
    st.tuples(st.integers(1, 2**16), st.floats(0.5, 2.0)),
    min_size=4,
    max_size=12,
    unique_by=lambda pair: pair[0],
)


# ------------------------------------------------------------------------------------------- fits


@given(xs=sizes, exponent=st.floats(-3, 3), constant=positive)
def test_a_power_law_is_recovered(xs: list[int], exponent: float, constant: float) -> None:
    law = fit_power_law(xs, [constant * x**exponent for x in xs])
    assert law.exponent == pytest.approx(exponent, abs=1e-6)
    assert law.low <= law.exponent <= law.high
    assert law.at(xs[0]) == pytest.approx(constant * xs[0] ** exponent, rel=1e-6)
    assert law.range == (min(xs), max(xs))


@given(points=noisy, x_unit=positive, y_unit=positive)
def test_exponents_do_not_depend_on_units(
    points: list[tuple[int, float]], x_unit: float, y_unit: float
) -> None:
    xs, ys = [x for x, _ in points], [x**1.5 * noise for x, noise in points]
    law = fit_power_law(xs, ys)
    other = fit_power_law([x * x_unit for x in xs], [y * y_unit for y in ys])
    assert other.exponent == pytest.approx(law.exponent, abs=1e-6)
    assert other.low == pytest.approx(law.low, abs=1e-6)
    assert other.high == pytest.approx(law.high, abs=1e-6)


def test_the_interval_has_its_level() -> None:
    """About 95 of 100 intervals hold the true exponent, with normal noise on logarithms."""
    random, xs = np.random.default_rng(0), [2**k for k in range(7)]
    laws = [
        fit_power_law(xs, [x**1.3 * math.exp(random.normal(0, 0.2)) for x in xs])
        for _ in range(1000)
    ]
    held = sum(law.low <= 1.3 <= law.high for law in laws)
    assert 930 <= held <= 970


@given(
    xs=st.lists(st.integers(1, 2**15), min_size=4, max_size=12, unique=True),
    terms=st.tuples(*[st.sampled_from([0.0, 1e-4, 1.0, 300.0])] * 3).filter(any),
)
def test_a_polynomial_is_recovered(xs: list[int], terms: tuple[float, float, float]) -> None:
    a, b, c = terms
    ys = [a + b * x + c * x**2 for x in xs]
    found = fit_polynomial(xs, ys)
    assert found.worst < 1e-6
    for x, y in zip(xs, ys, strict=True):
        assert found.at(x) == pytest.approx(y, rel=1e-6)
    assert min(found.fixed, found.linear, found.quadratic) >= 0


@given(points=noisy, x_unit=st.floats(1e-3, 1e3), y_unit=positive)
def test_polynomials_do_not_depend_on_units(
    points: list[tuple[int, float]], x_unit: float, y_unit: float
) -> None:
    xs, ys = [x for x, _ in points], [noise * (5 + x) for x, noise in points]
    here = fit_polynomial(xs, ys)
    there = fit_polynomial([x * x_unit for x in xs], [y * y_unit for y in ys])
    assert there.worst == pytest.approx(here.worst, rel=1e-6)
    for x in xs:
        assert there.at(x * x_unit) == pytest.approx(here.at(x) * y_unit, rel=1e-6)


@given(points=noisy)
def test_the_polynomial_is_that_of_scipy(points: list[tuple[int, float]]) -> None:
    xs = np.array([x for x, _ in points], dtype=np.float64)
    ys = np.array([noise * (5 + x) for x, noise in points])
    terms = np.stack([np.ones_like(xs), xs / 1e3, (xs / 1e3) ** 2], axis=1) / ys[:, None]
    _, residual = nnls(terms, np.ones_like(ys))
    ours = fit_polynomial(list(xs), list(ys))
    deviations = [ours.at(x) / y - 1 for x, y in zip(xs, ys, strict=True)]
    assert math.hypot(*deviations) == pytest.approx(residual, rel=1e-6, abs=1e-9)


def test_the_quadratic_term_takes_over_at_the_crossover() -> None:
    xs = [2**k for k in range(7, 16)]
    found = fit_polynomial(xs, [3.0 + 0.5 * x + 0.001 * x**2 for x in xs])
    assert found.crossover == pytest.approx(500)
    assert fit_polynomial(xs, [3.0 + 0.5 * x for x in xs]).crossover > 1e9


@pytest.mark.parametrize("fit", [fit_power_law, fit_polynomial])
@pytest.mark.parametrize(
    ("xs", "ys"),
    [([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [1, 0, 2]), ([0, 1, 2], [1, 1, 1])],
)
def test_what_cannot_be_fitted_is_refused(fit: object, xs: list[float], ys: list[float]) -> None:
    assert callable(fit)
    with pytest.raises(ValueError, match="a fit needs"):
        fit(xs, ys)


# ---------------------------------------------------------------------------------- communication

links = st.builds(Link, st.just("any"), st.floats(1e6, 1e13), st.floats(0, 1e-3))
seconds = st.floats(1e-4, 10)
gradients = st.floats(1, 1e12)


@given(compute=seconds, gradient=gradients, link=links)
def test_one_rank_communicates_nothing(compute: float, gradient: float, link: Link) -> None:
    assert all_reduce_bytes(gradient, 1) == 0
    assert step_seconds(compute, gradient, 1, link) == compute
    assert compute_scaling(compute, compute, gradient, 1, link).speedup == (1.0, 1.0)


@given(compute=seconds, gradient=gradients, ranks=st.integers(1, 512))
def test_an_infinite_bandwidth_scales_ideally(compute: float, gradient: float, ranks: int) -> None:
    link = Link("ideal", math.inf, 0.0)
    scaling = compute_scaling(compute, compute / ranks, gradient, ranks, link)
    assert scaling.speedup == pytest.approx((ranks, ranks))
    weak = compute_scaling(compute, compute, gradient, ranks, link, batches=ranks)
    assert weak.speedup == pytest.approx((ranks, ranks))


@given(
    compute=seconds,
    gradient=gradients,
    ranks=st.integers(2, 512),
    link=links,
    factor=st.floats(1, 100),
)
def test_communication_is_monotone(
    compute: float, gradient: float, ranks: int, link: Link, factor: float
) -> None:
    time = step_seconds(compute, gradient, ranks, link)
    faster = replace(link, bytes_per_second=link.bytes_per_second * factor)
    assert step_seconds(compute, gradient, ranks, faster) <= time
    assert step_seconds(compute, gradient * factor, ranks, link) >= time
    assert all_reduce_seconds(gradient, ranks + 1, link) >= all_reduce_seconds(
        gradient, ranks, link
    )
    assert compute <= time <= step_seconds(compute, gradient, ranks, link, overlap=0.0)
    assert all_reduce_bytes(gradient, ranks) <= 2 * gradient


def test_the_ring_sends_what_the_formula_says() -> None:
    """Eight ranks, 100 floats of 4 bytes: 14 messages of 50 bytes from each rank."""
    assert all_reduce_bytes(400, 8) == 14 * 50
    took = all_reduce_seconds(400, 8, NVLINK)
    assert took == pytest.approx(14 * NVLINK.latency + 700 / 450e9)


# ----------------------------------------------------------------------------------------- record


def measurement(size: int, seconds: list[float], **more: Any) -> Measurement:
    return Measurement(Point("width", "rope", size), seconds, tokens=100, rounds=2, **more)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "growth-cpu.json", "cpu")


def work(calls: list[int], size: int) -> Job:
    """A job that notes its calls."""
    return Job(Point("width", "rope", size), lambda: lambda: calls.append(size), tokens=size)


def failing(size: int, error: Exception) -> Job:
    def build() -> Work:
        raise error

    return Job(Point("width", "rope", size), build, tokens=size)


PLAN = Plan(torch.device("cpu"), rounds=5, turn=0.0)


def test_points_take_turns_and_are_not_measured_again(record: Record) -> None:
    calls: list[int] = []
    jobs = [work(calls, size) for size in (1, 2, 4)]
    measure_group(jobs, record, PLAN)
    turns = calls[2 * len(jobs) :]  # after a warm-up and a first timing of each
    assert all(set(turns[k : k + 3]) == {1, 2, 4} for k in range(0, len(turns), 3))
    assert [len(one.seconds) for one in record.measurements.values()] == [5, 5, 5]
    calls.clear()
    continued = Record(record.path, "cpu")
    measure_group([*jobs, work(calls, 8)], continued, PLAN)
    assert set(calls) == {8}
    assert Record(record.path, "cpu", again=["width"]).measurements == {}
    assert len(Record(record.path, "cpu", again=["length", "depth"]).measurements) == 4
    assert len(Record(record.path, "cpu").measurements) == 4


def test_out_of_memory_ends_a_curve_and_not_the_others(record: Record) -> None:
    calls: list[int] = []
    full = MemoryError("too much")
    other = Job(Point("depth", "rope", 9), lambda: lambda: calls.append(9), tokens=1)
    measure_group([work(calls, 1), failing(2, full), work(calls, 4), other], record, PLAN)
    failures = {point.size: one.failed for point, one in record.measurements.items()}
    assert failures == {1: None, 9: None, 2: OUT_OF_MEMORY}
    assert 4 not in calls
    assert not record.needs(Point("width", "rope", 2), WALL)


def test_an_error_is_recorded_and_does_not_end_the_rest(record: Record) -> None:
    calls: list[int] = []
    other = Job(Point("depth", "rope", 9), lambda: lambda: calls.append(9), tokens=1)
    measure_group([failing(2, ValueError("no such kernel\nmore")), other], record, PLAN)
    assert record.measurements[Point("width", "rope", 2)].failed == "ValueError: no such kernel"
    assert record.measurements[other.point].is_complete


def test_what_fits_only_alone_is_measured_alone(record: Record) -> None:
    alive: list[int] = []

    class Large:
        """Work that needs the memory of all others."""

        def __init__(self, size: int) -> None:
            if alive:
                raise MemoryError("not beside another")
            alive.append(size)

        def __call__(self) -> None: ...

        def __del__(self) -> None:
            alive.clear()

    def build(size: int) -> Work:
        return Large(size)

    jobs = [Job(Point("width", "rope", n), partial(build, n), tokens=n) for n in (1, 2, 4)]
    measure_group(jobs, record, PLAN)
    assert [one.failed for one in record.measurements.values()] == [None] * 3


def test_nothing_is_built_after_the_deadline(record: Record) -> None:
    calls: list[int] = []
    measure_group([work(calls, 1)], record, replace(PLAN, deadline=0.0))
    assert calls == []
    assert record.needs(Point("width", "rope", 1), WALL)


def test_a_point_by_another_clock_is_measured_again(record: Record) -> None:
    record.put(measurement(1, [1.0, 2.0], clock=PROCESSOR))
    assert not record.needs(Point("width", "rope", 1), PROCESSOR)
    assert record.needs(Point("width", "rope", 1), WALL)


def test_a_curve_of_longer_steps_replaces_the_old_one(record: Record) -> None:
    """Memory of steps with different numbers of tokens makes no curve."""
    for curve, size, tokens in (("rope", 2, 4), ("rope", 4, 4), ("rope", 8, 8), ("none", 2, 4)):
        record.put(Measurement(Point("length", curve, size), [1.0], tokens=tokens, rounds=1))
    record.keep_tokens("length", "rope", 8)
    assert {(point.curve, point.size) for point in record.measurements} == {
        ("rope", 8),
        ("none", 2),
    }


@pytest.mark.parametrize(("pairs", "block"), [(5, 50), (10, 5), (12, 5)])
def test_a_corpus_has_all_its_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: int, block: int
) -> None:
    monkeypatch.setattr(corpus_size, "BLOCK", block)
    for path in corpus_size.write_corpus(tmp_path, "train", pairs):
        assert len(path.read_text(encoding="utf-8").splitlines()) == pairs


def test_points_of_another_machine_are_refused(record: Record) -> None:
    record.put(measurement(1, [1.0, 2.0]))
    content = json.loads(record.path.read_text(encoding="utf-8"))
    content["machine"]["torch"] = "1.0"
    record.path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"torch 1\.0.*--again"):
        Record(record.path, "cpu")


# ---------------------------------------------------------------------------------------- results


def test_all_positions_are_measured() -> None:
    assert set(training_steps.POSITIONS) == set(POSITIONS.names())
    assert {len(set(grid.positions)) for grid in (training_steps.CPU, training_steps.CUDA)} == {7}
    assert training_steps.CUDA.lengths == (128, 32_768)


def test_time_by_length_is_of_one_sequence() -> None:
    """A step of 64 tokens whose sequences take b·n + c·n² each."""
    found = [
        Measurement(
            Point("length", "rope", n),
            [(64 // n) * (3e-3 * n + 1e-5 * n**2)] * 5,
            rounds=5,
            info={"sequences": 64 // n},
        )
        for n in (8, 16, 32, 64)
    ]
    (fit,) = fit_all(found)
    assert fit.polynomial.linear == pytest.approx(3e-3)
    assert fit.polynomial.quadratic == pytest.approx(1e-5)
    assert fit.polynomial.crossover == pytest.approx(300)
    assert 1 < fit.power.exponent < 2


def test_computed_ranks_come_from_measured_steps() -> None:
    seconds = {("graphs", 1): 0.1, ("eager", 1): 0.12, ("eager", RANKS): 0.02}
    found = [
        Measurement(
            Point("share", f"GPT-2 124M, {how}", ranks),
            [value],
            tokens=65_536,
            info={"gradient_bytes": 4 * 124e6},
        )
        for (how, ranks), value in seconds.items()
    ]
    _, rows = scaling_rows(found)
    speedups = [row[-1] for row in rows]
    assert len(rows) == 4  # a shared batch and a batch each, over two links
    assert speedups[0].startswith("5.0 to ")  # 0.1 / 0.02: NVLink hides all
    assert speedups[2].startswith("6.7 to ")  # 8 · 0.1 / 0.12


def test_the_page_has_the_tables_of_the_kept_records() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert fill(page, RESULTS) == page, "run python benchmarks/growth.py --pages"
    for figure in re.findall(r"\((images/growth-[\w-]+\.png)\)", page):
        assert (ROOT / "docs" / figure).exists()


def test_kept_records_name_no_folder_of_a_machine() -> None:
    for path in RESULTS.glob("growth-*"):
        assert not re.search(r"/(tmp|home|work|root)\b", path.read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------------------- command


@pytest.mark.slow
def test_the_command_measures_fits_and_draws(tmp_path: Path) -> None:
    """The tiny form of the real command; the second run measures nothing."""
    command = [
        sys.executable,
        "benchmarks/growth.py",
        "--tiny",
        "--cpu-time",
        "--out",
        str(tmp_path),
    ]
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    _, measured = read_record(tmp_path / "growth-cpu.json")
    assert {one.point.question for one in measured} == set(QUESTIONS)
    assert all(one.is_complete and one.failed is None for one in measured)
    assert all(one.memory for one in measured if one.point.question in ("length", "corpus"))
    ranks = {
        one.point.size: one.info["tokens"] for one in measured if one.point.question == "ranks"
    }
    assert ranks[1] == ranks[2]
    drawn = {path.name for path in tmp_path.glob("*.png")}
    names = ("length", "shape", "corpus", "decoding")
    assert drawn == {f"growth-{name}-cpu.png" for name in names}
    assert "first step after" in outputs[0]
    assert "first step after" not in outputs[1]
    assert outputs[0].partition("How cost grows")[2] == outputs[1].partition("How cost grows")[2]
