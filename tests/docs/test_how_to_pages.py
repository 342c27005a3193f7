"""docs/how-to: each page runs from top to bottom; commands that need an account of AWS (`bash`) name what exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

import worm
from tests.docs.commands import check_command, lines_of
from tests.docs.markdown import ROOT, blocks
from tests.docs.running import run_page
from tests.emulators import s3_client
from tests.fault_proxy import serving
from tests.template.policies import Guard, Policy
from worm.dev.aws import start_moto
from worm.dev.cfn import load
from worm.errors import Denied

FOLDER = ROOT / "docs" / "how-to"
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name != "install.md")
IN_A_BUCKET = ("adopt-a-bucket.md", "back-up-and-restore.md", "multi-tenant.md")
RUNBOOKS, QUERIES, HOOKS = "recover-from-alarms.md", "connect-athena-duckdb-polars.md", "webhooks.md"


def page_blocks(page: str, language: str) -> list[str]:
    return [block.text for block in blocks(FOLDER / page) if block.language == language]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_can_go_wrong_and_where_to_read_on(page: str) -> None:
    text = (FOLDER / page).read_text()
    titles = re.findall("^## (.*)$", text, flags=re.MULTILINE)
    wanted = ["See also"] if page == RUNBOOKS else ["What can go wrong", "See also"]
    assert titles[-len(wanted) :] == wanted
    assert re.search(r"\]\(\.\./[a-z-]+\.md", text.partition("## See also")[2])


@pytest.mark.parametrize("page", PAGES)
def test_json_blocks_are_json(page: str) -> None:
    for text in page_blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_for_an_account_name_what_exists(page: str) -> None:
    """A command that is mistyped costs most when something is on fire."""
    for block in blocks(FOLDER / page):
        for line in lines_of(block) if block.language == "bash" else ():
            check_command(line)


@pytest.mark.parametrize("page", [name for name in PAGES if name not in IN_A_BUCKET])
def test_a_page_runs_as_it_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = run_page(FOLDER / page, tmp_path, monkeypatch)
    if page == QUERIES:
        (declared,) = page_blocks(page, "sql")
        assert re.findall(r"^  (\w+) ", declared, flags=re.MULTILINE) == module.orders.column_names
        (polars,) = page_blocks(page, "py")
        if find_spec("polars"):
            exec(compile(polars, page, "exec"), module.__dict__)


class Bucket:
    """The bucket `acme-data` of the pages, on an AWS of its own: the pages give it its name."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._s3 = s3_client(endpoint)

    def actions(self, page: str, patch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
        def start() -> None:
            patch.setenv("AWS_ENDPOINT_URL", self.endpoint)
            self.create("acme-data")
            for name in ("acme", "bolt") if page == "adopt-a-bucket.md" else ():
                body = json.dumps({"name": name.title()}).encode()
                self._s3.put_object(Bucket="acme-data", Key=f"crm/customers/{name}/profile.json", Body=body)

        return {"bucket": start, "copy": self._copy}

    def create(self, name: str) -> None:
        self._s3.create_bucket(Bucket=name)
        self._s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def _copy(self) -> None:
        """As `aws s3 sync` does: the current versions, each copied by S3 with its metadata."""
        self.create("acme-backup")
        for listed in self._s3.list_objects_v2(Bucket="acme-data")["Contents"]:
            key = listed["Key"]
            self._s3.copy_object(Bucket="acme-backup", Key=key, CopySource={"Bucket": "acme-data", "Key": key})


@pytest.fixture
def bucket(tmp_path: Path, aws_environment: None) -> Iterator[Bucket]:
    aws = start_moto(tmp_path, "us-east-1")
    yield Bucket(aws.endpoint_url)
    aws.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", IN_A_BUCKET)
def test_a_page_about_a_bucket_runs_as_it_says(
    page: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    run_page(FOLDER / page, tmp_path / "home", monkeypatch, bucket.actions(page, monkeypatch))


@pytest.mark.slow
def test_the_policy_of_a_tenant_lets_it_into_its_own_prefix_only(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("acme-data")
    (text,) = page_blocks("multi-tenant.md", "json")
    with serving(guard := Guard(bucket.endpoint)):
        for tenant in ("north", "northwest"):
            guard.policies[tenant.upper()] = Policy.of(text.replace("${aws:PrincipalTag/tenant}", tenant))
        schema = {"models": {"Note": {"path": "@notes/(id:string)", "oplog": True, "softDelete": True, "fields": {}}}}

        def session(caller: str, tenant: str) -> worm.Worm:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", caller.upper())
            return worm.connect(f"s3://acme-data/tenants/{tenant}", schema=schema, endpoint_url=guard.url)

        for tenant in ("north", "northwest"):
            with session(tenant, tenant) as db:
                db.push()
                notes = db.model("Note")
                notes.insert({"id": "a"})
                notes.patch("a", {"text": "b"})
                notes.delete("a")
                notes.restore("a")
                assert [one["text"] for one in notes.find_all()] == ["b"]
                assert [report.differences for report in db.verify()] == [[]]
        assert guard.refused == []
        with pytest.raises(Denied), session("north", "northwest") as db:
            db.model("Note").get("a")


class Receiver:
    """Takes hooks, and fails the first one."""

    def __init__(self) -> None:
        self.taken: list[dict[str, object]] = []
        self.keys: list[str | None] = []
        self.answers = [500]
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = owner.answers.pop() if owner.answers else 200
                if answer == 200:
                    owner.taken.append(body)
                    owner.keys.append(self.headers["Idempotency-Key"])
                self.send_response(answer)
                self.end_headers()

            def log_message(self, *given: object) -> None:
                """Nothing on stderr."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.mark.slow
def test_webhooks_are_posted_at_least_once_across_failures_and_restarts(tmp_path: Path, receiver: Receiver) -> None:
    """A change that no hook reports is lost for the receiver."""
    (program,) = page_blocks(HOOKS, "python")
    assert len(program.splitlines()) <= 36
    data, cursor = str(tmp_path / "data"), tmp_path / "cursor.txt"
    schema = {"models": {"Note": {"path": "@notes/(id:string)", "oplog": True, "fields": {"n": {"type": "integer"}}}}}
    (tmp_path / "webhooks.py").write_text(program)
    command = [sys.executable, "webhooks.py", data, receiver.url, str(cursor)]

    def run_until(is_done: Callable[[], bool]) -> int | None:
        """The exit code, or None where it was killed in its endless loop."""
        path = os.pathsep.join((str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        try:
            for _ in range(300):
                if process.poll() is not None or is_done():
                    return process.poll()
                threading.Event().wait(0.1)
            raise AssertionError(f"not done in 30 seconds: {receiver.taken}")
        finally:
            process.kill()
            process.wait()

    def written(*numbers: int) -> None:
        with worm.connect(data, schema=schema) as db:
            for number in numbers:
                db.model("Note").upsert({"id": "a b", "n": number})

    with worm.connect(data, schema=schema) as db:
        db.push()
    assert run_until(cursor.exists) is None
    written(1, 2)
    assert run_until(lambda: False) == 1  # the receiver failed
    assert receiver.taken == []
    assert run_until(lambda: len(receiver.taken) == 2) is None
    written(3)
    assert run_until(lambda: receiver.taken[-1]["seq"] == 3) is None
    assert [one["op"] for one in receiver.taken if one["seq"] == 1] == ["create"] * receiver.keys.count("Note/a%20b/1")
    assert {(one["model"], one["id"], one["seq"]) for one in receiver.taken} == {("Note", "a b", n) for n in (1, 2, 3)}


# Alarms

ALARMS = (FOLDER / RUNBOOKS).read_text()
SECTIONS = dict(re.findall(r"^## Alarm ([a-z-]+)\n(.*?)(?=^## |\Z)", ALARMS, flags=re.MULTILINE | re.DOTALL))
TEMPLATES = [ROOT / "template.yaml", ROOT / "spark_jobs" / "template.yaml", *(ROOT / "functions").glob("*.yaml")]


def deployed_alarms() -> set[str]:
    """The alarms of all templates, without the name of the stack."""
    resources = [one for path in TEMPLATES for one in load(path.read_text())["Resources"].values()]
    names = [one["Properties"]["AlarmName"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
    return {one["Fn::Sub"].partition("}-")[2] for one in names}


def test_every_alarm_of_the_templates_has_its_section_and_its_line() -> None:
    assert set(SECTIONS) == deployed_alarms()
    assert {f"[`{one}`](#alarm-{one})" for one in SECTIONS} == set(
        re.findall(r"^\| (\[.*\)) \| ", ALARMS, flags=re.MULTILINE)
    )


@pytest.mark.parametrize("alarm", SECTIONS)
def test_a_section_says_what_it_means_what_to_run_and_when_to_stop(alarm: str) -> None:
    text = SECTIONS[alarm]
    assert re.findall(r"^\*([A-Za-z ]+):\* ", text, flags=re.MULTILINE) == ["It means", "Done when"]
    fenced = r"^```{}\n(.*?)^```$"
    [commands] = re.findall(fenced.format("bash"), text, flags=re.MULTILINE | re.DOTALL)
    [asked] = re.findall(fenced.format("insights"), text, flags=re.MULTILINE | re.DOTALL)
    assert len(commands.splitlines()) == 3
    assert asked.startswith("fields @timestamp, ")
    assert "\n| filter " in asked
