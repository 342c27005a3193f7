"""The console's files: known ones only, with the headers that keep a page to itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.client import Client, memory_session
from worm.api import static
from worm.api.app import Api
from worm.api.credentials import DeployedCallers, Trust

SCHEMA = {"models": {"Note": {"path": "#org/@notes/(id:string)", "fields": {}}}}
INDEX, SCRIPT = b"<!doctype html>", b"export {};"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Nobody is known: files need no credentials."""
    known = {
        name: static.StaticFile(body, static.TYPES[name.rpartition(".")[2]], f'"{static.digest(body)}"')
        for name, body in {"index.html": INDEX, "js/main.js": SCRIPT}.items()
    }
    monkeypatch.setattr(static, "console_files", lambda: known)
    session = memory_session(SCHEMA)
    return Client(Api(lambda: session, None, DeployedCallers(Trust("tokens"))))


def test_a_file_comes_with_the_policy_of_its_page(client: Client) -> None:
    found = client.get("/console/js/main.js")
    assert (found.status, found.body) == (200, SCRIPT)
    assert found.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert found.headers["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "path", ["/", "/console", "/console/", "/console/index.html", "/console/models/Note", "/console/models/Note/a%2Fb"]
)
def test_every_address_of_the_console_is_its_page(client: Client, path: str) -> None:
    assert client.get(path, Accept="text/html,*/*").body == INDEX


@pytest.mark.parametrize(
    "path",
    [
        "/console/../../../../../../etc/passwd",
        "/console/..%2f..%2f..%2fapp.py",
        "/console/%2e%2e/app.py",
        "/console//etc/passwd",
        "/console/%2fetc%2fpasswd",
        "/console/js/../../app.py",
        "/console/js/main.js%00.png",
        "/console/js/",
        "/console/js",
        "/console/.htaccess",
        "/console/%ff",
        "/console/main.js",
    ],
)
def test_nothing_else_is_there(client: Client, path: str) -> None:
    """A path that a caller sends never becomes one of the disk."""
    assert client.get(path).status in (400, 404)
    assert client.get(path, Accept="text/html").body == INDEX or path == "/console/%ff"


def test_a_copy_that_is_current_is_not_sent_again(client: Client) -> None:
    etag = client.get("/console/js/main.js").etag
    for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        found = client.get("/console/js/main.js", If_None_Match=known)
        assert (found.status, found.body, found.etag) == (304, b"", etag)
    assert client.get("/console/js/main.js", If_None_Match='"other"').status == 200


def test_nothing_can_be_written_there(client: Client) -> None:
    assert client.call("PUT", "/console/js/main.js", b"x").status == 405


def test_every_file_of_the_package_is_served() -> None:
    """One of an unknown kind would be left out in silence."""
    folder = Path(static.__file__).with_name("console")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(static.console_files()) == files
    assert static.INDEX in files
