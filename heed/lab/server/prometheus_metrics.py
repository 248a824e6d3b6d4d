"""Metrics of the server for Prometheus: requests, their time, batches, and what waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER = "other"
"""The path of requests for addresses that there are not."""


class ServerMetrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "heed_requests",
            "Requests by path and status.",
            ["path", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "heed_request_seconds",
            "Time from a request to the end of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "heed_requests_in_flight", "Requests not answered yet.", registry=self.registry
        )
        self.batch_size = Histogram(
            "heed_batch_size",
            "Texts that were decoded together.",
            ["run"],
            buckets=SIZES,
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "heed_batch_seconds",
            "Time to decode a batch.",
            ["run"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "heed_waiting", "Texts that wait to be decoded.", ["run"], registry=self.registry
        )

    def watch_run(self, name: str, waiting: Callable[[], int]) -> Callable[[int, float], None]:
        """Count the batches of a run: the result is called with the size and seconds of each."""
        self.waiting.labels(name).set_function(waiting)
        size, seconds = self.batch_size.labels(name), self.batch_seconds.labels(name)

        def on_batch(items: int, took: float) -> None:
            size.observe(items)
            seconds.observe(took)

        return on_batch

    def render(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Count every request and measure its time, by the path of its route."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.perf_counter()
        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, send_counted)
        finally:
            self.metrics.in_flight.dec()
            path = getattr(scope.get("route"), "path", OTHER)
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
