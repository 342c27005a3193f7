"""The console's files, which are part of the package: served from memory, and nothing else is.

Every path below `/console` that is not a file is an address inside the console: a browser gets index.html for it.
Nothing that a caller sends becomes a path on the disk.

The files contain nothing of any bucket, so they need no credentials. The requests of the page need a token.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from worm.api.call import Call, HttpAnswer
from worm.api.problems import HttpProblem
from worm.api.routes import Route
from worm.errors import show
from worm.values import dataclass

INDEX = "index.html"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "md": "text/plain; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""`no-cache`: a browser checks each time, with the ETag, whether its copy is current."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file."""

    body: bytes
    content_type: str
    etag: str


@cache
def console_files() -> dict[str, StaticFile]:
    """The files by their names below `/console/`."""
    folder = files("worm.api") / "console"
    return dict(_below(folder, "")) if folder.is_dir() else {}


def _below(folder: Traversable, prefix: str) -> list[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for one in sorted(folder.iterdir(), key=lambda entry: entry.name):
        kind = one.name.rpartition(".")[2]
        if one.is_dir():
            found += _below(one, f"{prefix}{one.name}/")
        elif kind in TYPES and not one.name.startswith("."):
            body = one.read_bytes()
            found.append((f"{prefix}{one.name}", StaticFile(body, TYPES[kind], f'"{digest(body)}"')))
    return found


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def show_index(call: Call) -> HttpAnswer:
    """`GET /`"""
    return answer_of(call, INDEX)


def show_file(call: Call) -> HttpAnswer:
    """`GET /console/{rest}`"""
    name = call.parameters["rest"]
    if name not in console_files() and "text/html" in (call.header("accept") or ""):
        name = INDEX
    return answer_of(call, name)


def answer_of(call: Call, name: str) -> HttpAnswer:
    found = console_files().get(name)
    if found is None:
        raise HttpProblem(404, "no-such-path", f"the console has no file {show(name)}")
    headers = {**HEADERS, "Content-Type": found.content_type, "ETag": found.etag}
    known = [one.strip().removeprefix("W/") for one in (call.header("if-none-match") or "").split(",")]
    if found.etag in known or "*" in known:
        return HttpAnswer(304, {name: value for name, value in headers.items() if name != "Content-Type"})
    return HttpAnswer(200, headers, found.body)


ROUTES = tuple(
    Route("GET", path, endpoint, "The console", scope="public", is_described=False)
    for path, endpoint in (
        ("/", show_index),
        ("/console", show_index),
        ("/console/", show_index),
        ("/console/{rest}", show_file),
    )
)
