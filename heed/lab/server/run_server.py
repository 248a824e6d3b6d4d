"""`heed serve`: load the runs, listen until Ctrl-C or SIGTERM, finish what is in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from heed.lab.run_lab import require_extra
from heed.terminal import Say

if TYPE_CHECKING:
    from heed.lab.server.served_runs import ServerSettings

USUAL_PORT = 8650
"""The port where clients find the server, unless another is named."""


@dataclass(frozen=True)
class ListenOptions:
    """The address of the server, and its key."""

    host: str = "127.0.0.1"
    port: int | None = None
    key: str | None = None


def run_server(
    runs: Sequence[str],
    options: ListenOptions,
    settings: ServerSettings,
    say: Say,
) -> None:
    """Serve runs until Ctrl-C or SIGTERM. `say` prints a line for the user."""
    require_extra("serve")
    from heed.lab.access import MIN_KEY
    from heed.lab.listen import address_of, bind, listen, require_key_elsewhere
    from heed.lab.server.served_runs import load_runs
    from heed.lab.server.server_app import build_server

    require_key_elsewhere(options.host, options.key, min_length=MIN_KEY)
    listener = bind(options.host, options.port, USUAL_PORT)
    served = load_runs(runs, settings)
    app = build_server(served, key=options.key, host=options.host)
    address = address_of(listener)
    say(f"Serving {', '.join(served.describe())} at {address}. Ctrl-C ends it.")
    say(f"What can be asked: {address}/docs")
    listen(app, listener, closing=Event())
