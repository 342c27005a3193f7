"""`worm serve` and `worm token`: the API on this machine, and who may use it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.company import Command
from worm.api.local import LocalApi
from worm.errors import Invalid
from worm.sdk.database import Worm

WORM = Path(sys.executable).with_name("worm")


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A runner that a shell started in the background ignores Ctrl-C, and so would the commands that it starts."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def served(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and the lines that it has printed."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    process = subprocess.Popen(
        [str(WORM), "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=usual | variables,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(3)]
        assert lines[-1] == "stop it with Ctrl-C", process.communicate()
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def asked(
    url: str, path: str, token: str | None = None, method: str = "GET", body: object = None, **headers: str
) -> tuple[int, Mapping[str, str], Any]:
    given = {"Content-Type": "application/json", **headers}
    if token is not None:
        given["Authorization"] = f"Bearer {token}"
    place = urlsplit(url)
    client = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
    try:
        client.request(method, path, None if body is None else json.dumps(body), given)
        answer = client.getresponse()
        content = answer.read()
        return answer.status, dict(answer.getheaders()), json.loads(content) if content else None
    finally:
        client.close()


@pytest.mark.slow
def test_it_prints_where_it_is_and_answers_whoever_has_the_token(session: Worm, url: str) -> None:
    with served("--url", url, WORM_ACTOR="user:bob") as (process, lines):
        where = re.fullmatch(rf"serving {re.escape(url)} at (http://127\.0\.0\.1:\d+)/v1", lines[0])
        link = re.fullmatch(r"console: (http://127\.0\.0\.1:\d+)/#token=([0-9a-f]{48})", lines[1])
        assert where is not None
        assert link is not None
        assert link[1] == where[1]
        status, headers, found = asked(where[1], "/v1/models/Customer/documents/zeta", link[2])
        assert (status, found["document"]["name"]) == (200, "Zeta")
        assert int(headers["Worm-Requests"]) >= 0
        assert asked(where[1], "/v1/models")[0] == 401
        assert asked(where[1], "/v1", link[2])[2]["identity"]["actor"] == "user:bob"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.communicate()[1] == "stopping\n"


@pytest.mark.slow
def test_sigterm_ends_it_as_well(session: Worm, url: str) -> None:
    with served("--url", url) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


@pytest.mark.slow
def test_a_token_can_be_chosen_and_writes_be_refused(session: Worm, url: str) -> None:
    with served("--read-only", WORM_URL=url, WORM_TOKEN="chosen-by-me") as (_, lines):
        assert lines[0].startswith(f"serving {url} (read-only) at http://127.0.0.1:")
        where = lines[1].removeprefix("console: ").partition("/#token=")[0]
        assert asked(where, "/v1", "chosen-by-me")[2]["identity"]["scopes"] == ["read"]
        assert asked(where, "/v1", "chosen-by-me")[2]["mode"] == "readonly"


def test_a_port_in_use_is_one_line(worm: Command, session: Worm, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = worm("serve", "--url", url, "--port", str(port))
    assert (ended.exit_code, ended.stdout) == (6, "")
    assert ended.stderr.startswith(f"worm: port {port} of 127.0.0.1 is in use (")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "worm: 0.0.0.0 is not a loopback address"),
        (["--token", "short"], "worm: the token is too short"),
        (["--token", "with spaces in it"], "worm: the token is too short, or has characters"),
        (["--port", "70000"], "worm: Invalid value for '--port'"),
    ],
)
def test_mistakes_are_one_line(worm: Command, session: Worm, url: str, arguments: list[str], said: str) -> None:
    ended = worm("serve", "--url", url, *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1


def test_a_place_without_a_schema_is_one_line(worm: Command, tmp_path: Path) -> None:
    ended = worm("serve", "--url", str(tmp_path))
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1


def test_open_shows_the_link_to_the_browser(
    worm: Command, session: Worm, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def browse(link: str) -> bool:
        shown.append(link)
        return False

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr(LocalApi, "serve", lambda self: None)
    ended = worm("serve", "--url", url, "--open")
    assert ended.exit_code == 0
    assert [f"console: {one}" for one in shown] == ended.stdout.splitlines()[1:2]
    assert ended.stderr == "worm: cannot open a browser; use the link\n"


def test_a_local_api_in_a_thread_ends_with_its_block(session: Worm) -> None:
    with LocalApi(session, token="of-this-test") as local:
        assert local.link == f"{local.url}/#token=of-this-test"
        assert asked(local.url, "/v1", "of-this-test")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        asked(local.url, "/v1", "of-this-test")
    with pytest.raises(Invalid, match="too short"):
        LocalApi(session, token="")


# --- tokens


def test_a_token_reads_what_it_was_made_for_until_it_is_revoked(worm: Command, session: Worm, url: str) -> None:
    made = worm("token", "create", "Customer", "--days", "3", "--note", "for Bob", "--url", url)
    token = made.stdout.strip()
    name = token.split("_")[1]
    assert made.exit_code == 0
    assert re.fullmatch(rf"worm: token {name} reads Customer until \S+; it is shown only now\n", made.stderr)
    with LocalApi(session, token="of-this-test") as local:
        assert asked(local.url, "/v1/models/Customer/documents/zeta", token)[0] == 200
        assert asked(local.url, "/v1/models/OrgSettings/documents/_", token)[0] == 404
        assert [one["name"] for one in asked(local.url, "/v1/models", token)[2]["items"]] == ["Customer"]
    [row] = json.loads(worm("token", "list", "--format", "json", "--url", url).stdout)
    assert (row["id"], row["state"], row["models"], row["note"]) == (name, "active", ["Customer"], "for Bob")
    assert worm("token", "revoke", name, "--url", url).stdout == f"revoked {name}\n"
    with LocalApi(session, token="of-this-test") as local:
        assert asked(local.url, "/v1/models/Customer/documents/zeta", token)[0] == 401
    assert "revoked" in worm("token", "list", "--url", url).stdout


def test_the_list_of_tokens_has_no_null(worm: Command, session: Worm, url: str) -> None:
    worm("token", "create", "--url", url)
    *_, line = worm("token", "list", "--url", url).stdout.splitlines()
    assert (line.split()[3], line.split()[5:]) == ("all", ["--", "--"])


def test_a_token_of_no_model_is_not_made(worm: Command, session: Worm, url: str) -> None:
    ended = worm("token", "create", "Nothing", "--url", url)
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert worm("token", "revoke", "nothing", "--url", url).exit_code == 3
