"""Does `heed serve` stand 200 clients at once, and does decoding together pay?

    python benchmarks/serve_load.py --run runs/demo             the demo's model and a large one
    python benchmarks/serve_load.py --run runs/demo --tiny      a trial of seconds

For each model, in one run: one client sends request after request, then 200 clients at once send
theirs for a minute, then the one client again. The server is the real command; the clients are
other processes on the same cores. Each client sends its next request as soon as it has the answer.
One that is refused (429, 503) waits as long as Retry-After says and sends the request again.

By Little's law 200 clients that are all let in wait 200 / throughput. So latency stays within ten
times that of one client only because the queue is bounded and the rest are refused.

Reported: throughput and latency of answered requests, compared with the one client; refusals and
other errors; answers that differ from those that the one client got; the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from common import ROOT, environment, keep, set_options, table
from process_monitor import read_memory

from heed.data.synthetic import generate_sentences

LARGE = {
    "model.layers": 4,
    "model.width": 512,
    "model.heads": 8,
    "model.feed_forward": 2048,
    "train.steps": 40,
    "train.warmup": 10,
    "train.lr": 5e-4,
}
"""Changes of demo-translate that make 30 million parameters, trained for a few steps."""
BUSY = (429, 503)
MIN_GAIN, MAX_SLOWDOWN, MAX_GROWTH = 8.0, 10.0, 1.05
"""What is held: throughput, p95 latency, and memory of the last quarter against the second."""


@dataclass
class Load:
    """What some clients saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    """Seconds of each answered request, from its last sending."""
    statuses: Counter[int] = field(default_factory=Counter)
    answers: dict[str, str] = field(default_factory=dict)
    differing: int = 0
    """Answers that were not those of the one client."""
    first_difference: str = ""

    def add(self, other: Load) -> None:
        """Add what other clients saw meanwhile."""
        self.seconds = max(self.seconds, other.seconds)
        self.latencies += other.latencies
        self.statuses += other.statuses
        self.answers |= other.answers
        self.differing += other.differing
        self.first_difference = self.first_difference or other.first_difference

    @property
    def throughput(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: int) -> float:
        """A percentile of the latencies in seconds."""
        return statistics.quantiles(self.latencies, n=100, method="inclusive")[percent - 1]


async def send(
    session: aiohttp.ClientSession, address: str, text: str, load: Load
) -> tuple[int, str, float]:
    """Send one request; its status, the translation, and the seconds to wait if it is refused."""
    body = {"q": text, "source": "en", "target": "fr"}
    began = time.perf_counter()
    async with session.post(f"{address}/translate", json=body) as response:
        answer = await response.json()
        status, retry = response.status, float(response.headers.get("Retry-After", 1))
    load.statuses[status] += 1
    if status == 200:
        load.latencies.append(time.perf_counter() - began)
        return status, answer["translatedText"], 0.0
    return status, json.dumps(answer), retry


async def run_client(
    session: aiohttp.ClientSession,
    address: str,
    texts: Sequence[str],
    end: float,
    load: Load,
    expected: dict[str, str],
) -> None:
    """Send texts one after the other until the end; compare the answers with those expected."""
    number = 0
    while time.perf_counter() < end:
        text = texts[number % len(texts)]
        status, answer, retry = await send(session, address, text, load)
        if status in BUSY:
            await asyncio.sleep(min(retry, max(0.0, end - time.perf_counter())))
            continue
        number += 1
        load.answers[text] = answer
        if text in expected and answer != expected[text]:
            load.differing += 1
            load.first_difference = load.first_difference or f"{text!r}: {answer!r}"


async def run_clients(
    address: str,
    texts: Sequence[str],
    clients: int,
    seconds: float,
    expected: dict[str, str],
    first: int,
) -> Load:
    """Run clients at once; client i begins at another text than the others."""
    load = Load()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        began = time.perf_counter()
        tasks = []
        for i in range(first, first + clients):
            start = (37 * i) % len(texts)
            turned = [*texts[start:], *texts[:start]]
            tasks.append(run_client(session, address, turned, began + seconds, load, expected))
        await asyncio.gather(*tasks)
        load.seconds = time.perf_counter() - began
    return load


def client_process(job: tuple[Any, ...]) -> Load:
    """Run clients in a process of their own."""
    return asyncio.run(run_clients(*job))


@dataclass
class Server:
    """The real server, as a process."""

    run: Path
    options: Sequence[str] = ()
    address: str = ""

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "heed", "serve", str(self.run), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--device", "cpu", *self.options],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path.cwd(),
        )
        for line in self.process.stdout or ():
            if match := re.search(r"at (http://\S+?)\. ", line):
                self.address = match[1]
                return self
        raise SystemExit("the server did not start")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        if self.process.wait(60) not in (0, -15):
            raise SystemExit(f"the server ended with {self.process.returncode}")

    def memory(self) -> int:
        """Anonymous memory in bytes, as Linux reports it."""
        return read_memory(Path(f"/proc/{self.process.pid}/status")).get("RssAnon", 0)


def measure(
    run: Path, *, clients: int, seconds: float, alone_seconds: float, options: Sequence[str]
) -> dict[str, Any]:
    """One model: one client, many clients, one client again."""
    texts = [sentence.english for sentence in generate_sentences("test", 400)]
    context = multiprocessing.get_context("spawn")
    with Server(run, options) as server, context.Pool(2) as pool:
        asyncio.run(run_clients(server.address, texts[:5], 1, 1.0, {}, 0))  # warms up
        alone = asyncio.run(run_clients(server.address, texts, 1, alone_seconds, {}, 0))
        known = list(alone.answers)
        half = clients // 2
        jobs = [
            (server.address, known, count, seconds, alone.answers, first)
            for first, count in ((0, half), (half, clients - half))
        ]
        pending = pool.map_async(client_process, jobs)
        memory = []
        while not pending.ready():
            memory.append(server.memory())
            time.sleep(0.5)
        many = Load()
        for part in pending.get():
            many.add(part)
        after = asyncio.run(run_clients(server.address, known, 1, alone_seconds, alone.answers, 0))
    alone.add(after)
    alone.seconds = 2 * alone_seconds
    quarter = max(1, len(memory) // 4)
    growth = max(memory[-quarter:]) / max(memory[quarter : 2 * quarter] or memory)
    errors = {s: n for s, n in many.statuses.items() if s != 200 and s not in BUSY}
    return {
        "run": run.name,
        "clients": clients,
        "seconds": seconds,
        "texts": len(known),
        "alone": _summary(alone),
        "together": _summary(many),
        "gain": many.throughput / alone.throughput,
        "slowdown": many.percentile(95) / alone.percentile(50),
        "slowdown_of_p95": many.percentile(95) / alone.percentile(95),
        "errors": errors,
        "differing": many.differing + after.differing,
        "first_difference": many.first_difference or after.first_difference,
        "memory_growth": growth,
        "memory": [round(value / 2**20, 1) for value in memory],
    }


def _summary(load: Load) -> dict[str, Any]:
    return {
        "answers": len(load.latencies),
        "per_second": load.throughput,
        "p50_ms": 1e3 * load.percentile(50),
        "p95_ms": 1e3 * load.percentile(95),
        "p99_ms": 1e3 * load.percentile(99),
        "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
    }


def describe(result: dict[str, Any]) -> str:
    """The result of one model as a table, and what is held or not."""
    rows = []
    for name, title in ("alone", "one client"), ("together", f"{result['clients']} clients"):
        part = result[name]
        statuses = part["statuses"]
        refused = sum(count for status, count in statuses.items() if int(status) in BUSY)
        rows.append(
            [
                title,
                f"{part['answers']:,}",
                f"{part['per_second']:.1f}",
                *(f"{part[key]:.0f}" for key in ("p50_ms", "p95_ms", "p99_ms")),
                f"{refused:,}",
            ]
        )
    columns = ["", "answers", "per second", "p50 ms", "p95 ms", "p99 ms", "429 or 503"]
    held = {
        f"throughput {result['gain']:.1f} times (at least {MIN_GAIN:g})": result["gain"]
        >= MIN_GAIN,
        f"p95 latency {result['slowdown']:.1f} times a single request's median (below "
        f"{MAX_SLOWDOWN:g})": result["slowdown"] < MAX_SLOWDOWN,
        f"other errors: {result['errors'] or 'none'}": not result["errors"],
        f"answers unlike those given alone: {result['differing']} "
        f"{result['first_difference']}".rstrip(): not result["differing"],
        f"memory {result['memory'][-1]:.0f} MiB, {result['memory_growth']:.3f} times that of the "
        f"second quarter (at most {MAX_GROWTH:g})": result["memory_growth"] <= MAX_GROWTH,
    }
    lines = [f"{'holds' if good else 'FAILS'}: {sentence}" for sentence, good in held.items()]
    title = f"{result['run']}, {result['seconds']:g} s, {result['texts']} texts"
    return "\n".join([table(title, columns, rows), *lines])


def train_large(folder: Path) -> Path:
    """A run of 30 million parameters, trained for a few steps, unless it is there."""
    if not (folder / "model.safetensors").exists():
        command = [sys.executable, "-m", "heed", "train", "demo-translate", *set_options(LARGE)]
        subprocess.run([*command, "--run", str(folder)], env=environment(), check=True, cwd=ROOT)
    return folder


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, required=True, help="the demo's run (heed demo)")
    parser.add_argument("--large", type=Path, default=None, help="folder of the large run")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=["small", "large"], default=None)
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--serve", action="append", default=[], help="an option of heed serve")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    seconds = 8.0 if options.tiny else options.seconds
    folders = [] if options.only == "large" else [options.run]
    if options.only != "small":
        folders.append(train_large(options.large or options.run.parent / "serve-large"))
    results = [
        measure(
            folder,
            clients=options.clients,
            seconds=seconds,
            alone_seconds=seconds / 3,
            options=options.serve,
        )
        for folder in folders
    ]
    keep(
        "serve-load", "\n\n".join(map(describe, results)), results, device="cpu", folder=options.out
    )


if __name__ == "__main__":
    main()
