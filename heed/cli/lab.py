"""Commands in the browser and over HTTP: lab opens runs in a browser, serve answers programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import Device, PluginFiles, Weights, app, print_text

LOOPBACK = "127.0.0.1"
Host = Annotated[
    str, typer.Option(help="The address to listen on. Others than loopback need --key.")
]


@app.command(rich_help_panel="Look inside")
def lab(
    folder: Annotated[Path, typer.Argument(help="A folder of runs, one run, or one study.")] = Path(
        "runs"
    ),
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port to listen on, 0 for any free one. Default: 8642, or the next free one.",
        ),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the link, and open no browser.")
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Start, stop and change nothing: only look and compute."),
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(min=1, max=64, help="Runs started in the lab that train at once."),
    ] = 1,
    host: Host = LOOPBACK,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="HEED_LAB_KEY",
            help="A key to enter in the browser, or for programs: Authorization: Bearer KEY.",
        ),
    ] = None,
    plugin: PluginFiles = None,
) -> None:
    """Open the lab: train models, compare runs and inspect attention in the browser.

    It shows the runs of a folder as they are, also while they train; there is no account, no
    upload and no network. The printed link works once and gives this browser access.

    heed lab

    heed lab runs/my-study --read-only

    heed lab --no-open --port 8700
    """
    from heed.lab.run_lab import LabOptions, run_lab

    options = LabOptions(
        host, port, key, opens_browser=not no_open, is_read_only=read_only, jobs=jobs
    )
    run_lab(folder, options, print_text)


@app.command(rich_help_panel="Use a model")
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run folders, or NAME=FOLDER for another name."),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port to listen on, 0 for any free one. Default: 8650, or the next free one.",
        ),
    ] = None,
    host: Host = LOOPBACK,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="HEED_SERVE_KEY",
            help="A key that requests must have: api_key, or Authorization: Bearer KEY.",
        ),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Texts that are decoded together.")
    ] = 24,
    max_waiting: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="Texts that may wait; more are answered by 429."),
    ] = 24,
    time_limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request; then it is answered by 503.")
    ] = 60.0,
    max_text: Annotated[
        int, typer.Option(min=1, help="Characters of a text; a longer one is answered by 413.")
    ] = 10_000,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=100_000, help="New tokens of a completion, at most.")
    ] = 1024,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Threads that decode for each run. Default: by its size."),
    ] = None,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Of translation: float32, bf16 or, on a CPU, int8; "
            "with --engine ctranslate2 also float16."
        ),
    ] = "float32",
    engine: Annotated[
        str, typer.Option(help="Engine of translation: heed or ctranslate2.")
    ] = "heed",
) -> None:
    """Serve runs over HTTP: LibreTranslate's and OpenAI's requests, and classification.

    Requests that arrive together are decoded as one batch; on a CPU each answer is bit-identical
    to decoding that request alone. Ctrl-C or SIGTERM finishes what is in flight.

    heed serve runs/demo

    curl localhost:8650/translate -d q="The old woman sees the cat." -d source=en -d target=fr

    heed serve en-fr=runs/demo runs/stories --host 0.0.0.0 --key "$KEY"
    """
    from heed.lab.run_lab import require_extra

    require_extra("serve")
    from heed.lab.server.run_server import ListenOptions, run_server
    from heed.lab.server.served_runs import ServerLimits, ServerSettings

    limits = ServerLimits(
        max_batch=max_batch,
        max_waiting=max_waiting,
        seconds=time_limit,
        max_text=max_text,
        max_tokens=max_tokens,
    )
    settings = ServerSettings(
        device=device,
        engine=engine,
        precision=precision,
        weights=weights,
        workers=workers,
        limits=limits,
    )
    run_server(runs, ListenOptions(host, port, key), settings, print_text)
