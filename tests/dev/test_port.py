"""Where the embedded AWS listens: on loopback and a free port, unless somebody asks for another place."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from worm.cli.program import app
from worm.dev.aws import Aws, reached_at, start_moto
from worm.dev.demo import _show_containers
from worm.dev.demo_view import Display
from worm.dev.environment import Environment, Settings
from worm.errors import Unavailable

SMALL = Path(__file__).parent / "template_small.yaml"


def _started(folder: Path, tries: int = 10) -> tuple[Aws, int]:
    """On a port that was free a moment ago; another process may have taken it meanwhile."""
    for _ in range(tries):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        try:
            return start_moto(folder, "us-east-1", port=port), port
        except Unavailable:
            continue
    raise AssertionError("no port stays free")


@pytest.mark.slow
def test_it_listens_on_the_port_that_is_asked_for(tmp_path: Path) -> None:
    aws, port = _started(tmp_path)
    try:
        assert aws.endpoint_url == f"http://127.0.0.1:{port}"
        assert aws.s3().list_buckets()["Buckets"] == []
    finally:
        aws.stop()


@pytest.mark.slow
def test_a_port_that_is_taken_is_said_to_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"nothing can listen on 127\.0\.0\.1, port {port}: ") as refused:
            Environment(SMALL, Settings(port=port, work_dir=tmp_path)).start()
    assert refused.value.hint == "stop the process that listens there, or choose another --port"


@pytest.mark.slow
def test_an_address_that_this_machine_does_not_have_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"nothing can listen on 192\.0\.2\.1, port 0: "):
        start_moto(tmp_path, "us-east-1", host="192.0.2.1")


def test_what_listens_on_all_addresses_is_used_by_loopback() -> None:
    assert [reached_at(host) for host in ("0.0.0.0", "127.0.0.1", "172.17.0.1")] == [
        "127.0.0.1",
        "127.0.0.1",
        "172.17.0.1",
    ]


def _told(host: str) -> str:
    text = io.StringIO()
    env = SimpleNamespace(endpoint_url="http://127.0.0.1:4566", settings=Settings(host=host))
    _show_containers(cast(Environment, env), Display(Console(file=text)))
    return text.getvalue()


def test_containers_are_told_where_it_is_and_other_machines_are_warned_of() -> None:
    assert "http://host.docker.internal:4566" in _told("127.0.0.1")
    assert "--host 172.17.0.1" in _told("127.0.0.1")
    assert "WARNING" not in _told("127.0.0.1")
    assert "WARNING: anyone who can reach 0.0.0.0 can read and write everything here" in _told("0.0.0.0")


def test_the_command_hands_port_and_host_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def serve(**options: object) -> int:
        given.update(options)
        return 0

    monkeypatch.setattr("worm.dev.demo.serve", serve)
    assert CliRunner().invoke(app, ["dev", "--port", "4566", "--host", "172.17.0.1"]).exit_code == 0
    assert (given["port"], given["host"]) == (4566, "172.17.0.1")
    assert CliRunner().invoke(app, ["dev"]).exit_code == 0
    assert (given["port"], given["host"]) == (None, None)


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "4566", "--aws", "localstack"],
        ["--host", "0.0.0.0", "--endpoint-url", "http://localhost:9000"],
        ["--port", "0"],
        ["--port", "65536"],
        ["--port", "http"],
    ],
)
def test_a_port_that_cannot_be_is_refused(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.dev.demo.serve", lambda **_: pytest.fail("it was started"))
    ended = CliRunner().invoke(app, ["dev", *options])
    assert ended.exit_code == 2, ended.output
