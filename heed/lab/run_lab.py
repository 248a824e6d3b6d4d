"""`heed lab`: check that the extra is installed, print the link, listen, open the browser."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from heed.errors import HeedError, install_hint
from heed.terminal import Say

USUAL_PORT = 8642
"""The port where bookmarks find the lab again."""
REQUIRED = ("fastapi", "uvicorn")


@dataclass(frozen=True)
class LabOptions:
    """Options of the command."""

    host: str = "127.0.0.1"
    port: int | None = None
    key: str | None = None
    opens_browser: bool = True
    is_read_only: bool = False
    jobs: int = 1


def require_extra(extra: str) -> None:
    """Raise an error if the libraries of the extra, `lab` or `serve`, are not installed."""
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        what = f"{' and '.join(missing)} cannot be imported."
        raise HeedError(what, todo=install_hint(extra, count=len(missing)))


def run_lab(folder: Path, options: LabOptions, say: Say) -> None:
    """Listen until Ctrl-C or SIGTERM. `say` prints a line for the user."""
    require_extra("lab")
    from heed.lab.access import MIN_KEY, OPEN, Access
    from heed.lab.lab_app import build_lab
    from heed.lab.listen import address_of, bind, listen, open_browser, require_key_elsewhere

    require_key_elsewhere(options.host, options.key, min_length=MIN_KEY)
    access = Access(options.key)
    app = build_lab(
        folder,
        access=access,
        host=options.host,
        is_read_only=options.is_read_only,
        jobs=options.jobs,
    )
    listener = bind(options.host, options.port, USUAL_PORT)
    address = address_of(listener)

    def link_of(token: str) -> str:
        return f"{address}{OPEN}?token={token}"

    say(f"The lab of {folder}, until Ctrl-C, is at {address}")
    link = link_of(access.new_link())
    say(f"This link opens it, once: {link}")
    access.on_spent = lambda token: say(f"For another browser: {link_of(token)}")
    if options.opens_browser:
        open_browser(link)
    listen(app, listener, closing=app.state.lab.closing)
