"""The whole pipeline on this machine: `worm demo`, `python -m worm.dev.demo` (what scripts/run runs), and `worm dev`.

It starts the embedded AWS as template.yaml says, pushes the sample schema, sends documents with plain boto3, waits
until the workers are done, and shows the results, trash included, by running the `worm` command; at the end, Spark
rebuilds them. The exit code is 0 only if neither `worm verify` nor Spark finds a difference and no dead letter is left;
then nothing remains on disk. Otherwise the logs stay, and the output says where they are.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal, cast
from urllib.parse import urlsplit

from worm.api import LocalApi
from worm.cli import app
from worm.clock import SystemClock, iso_seconds
from worm.dev.aws import LOOPBACK
from worm.dev.demo_load import apply_workload
from worm.dev.demo_spark import show_spark
from worm.dev.demo_trash import show_trash
from worm.dev.demo_view import Display
from worm.dev.environment import Environment, Settings
from worm.dev.runtime import FunctionCounts
from worm.dev.sample.documents import SCHEMA_PATH, Workload, workload
from worm.errors import NotFound, WormError
from worm.sdk import connect

AwsName = Literal["moto", "localstack"]

DOCUMENTS = 300
QUICK_DOCUMENTS = 25
WINDOW_SECONDS = 1.0
QUIET_SECONDS_MAX = 180.0
PARAMETERS = {"SparkArtifactsBucket": "worm-dev-artifacts"}
"""With a bucket for its code, the Spark schedule exists; nothing is read from it here."""
_EXPORTS = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "WORM_URL",
    "WORM_MAINTENANCE",
)
CONTAINER_HOST = "host.docker.internal"
DOCKER_BRIDGE = "172.17.0.1"
_DEPLOYED = Path(__file__).resolve().parent / "deployed"
_EXAMPLE_ID = "0b9e8a52-6c1d-4f0e-9a57-3d1f6f0c2b11"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/run", description="Run the whole pipeline on the embedded AWS.")
    parser.add_argument("--serve", action="store_true", help="leave it running until Ctrl-C (same as `worm dev`)")
    parser.add_argument("--documents", type=int, metavar="N", help=f"documents to upload (default {DOCUMENTS})")
    parser.add_argument("--aws", choices=("moto", "localstack"), default="moto", help="which AWS emulator to use")
    parser.add_argument("--endpoint-url", metavar="URL", help="an AWS-like endpoint that is already running")
    parser.add_argument(
        "--fire", metavar="SCHEDULE", help="with --serve: fire this schedule once, e.g. rebuild (a Spark job)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.documents is not None and chosen.documents < 0:
        parser.error("--documents must not be negative")
    try:
        if chosen.serve:
            documents = chosen.documents or 0
            return serve(aws=chosen.aws, endpoint_url=chosen.endpoint_url, documents=documents, fire=chosen.fire)
        documents = DOCUMENTS if chosen.documents is None else chosen.documents
        return run(aws=chosen.aws, endpoint_url=chosen.endpoint_url, documents=documents)
    except WormError as error:
        sys.stderr.write(f"worm: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def run(
    *,
    aws: AwsName = "moto",
    endpoint_url: str | None = None,
    documents: int = DOCUMENTS,
    without_spark: str | None = None,
) -> int:
    """The demo, which ends by itself. `without_spark` is the reason to leave out the part with Spark."""
    display = Display()
    started = time.monotonic()
    settings = _settings(aws, endpoint_url)
    with _logs(settings, display) as finished, Environment(template_path(), settings) as env, _variables(env):
        display.line(f"the embedded AWS runs at {env.endpoint_url}, wired by template.yaml")
        worm(display, "push", str(SCHEMA_PATH))
        load = workload(documents)
        _work(env, display, load)
        exit_code = _show(env, display, load, without_spark)
        finished.append(exit_code)
    display.line(f"done in {time.monotonic() - started:.0f} s")
    return exit_code


def serve(
    *,
    aws: str = "moto",
    endpoint_url: str | None = None,
    documents: int = 0,
    fire: str | None = None,
    port: int | None = None,
    host: str | None = None,
) -> int:
    """The embedded AWS until Ctrl-C; `fire` names a schedule to fire once at the start. It listens on loopback and on a
    free port, unless `host` and `port` are given."""
    display = Display()
    settings = replace(_settings(cast(AwsName, aws), endpoint_url), port=port or 0, host=host or LOOPBACK)
    with (
        _logs(settings, display) as finished,
        _ctrl_c(),
        Environment(template_path(), settings) as env,
        _variables(env),
    ):
        worm(display, "push", str(SCHEMA_PATH))
        if documents:
            _work(env, display, workload(documents))
        if fire is not None:
            _fire(env, display, fire)
        with LocalApi(connect(os.environ["WORM_URL"])) as local:
            _show_how(env, display, local)
            try:
                _watch(env, display)
            except KeyboardInterrupt:
                display.line("stopping")
        finished.append(0)
    return 0


def template_path() -> Path:
    """template.yaml with the functions and jobs that it names: those of the wheel, or of this checkout."""
    for folder in (_DEPLOYED, _DEPLOYED.parents[3]):
        if (folder / "template.yaml").is_file():
            return folder / "template.yaml"
    raise NotFound(f"there is no {_DEPLOYED / 'template.yaml'}", hint="install s3worm again")


def worm(display: Display, *arguments: str) -> int:
    """Run the `worm` command in this process, as you would type it; returns its exit code."""
    display.command([_shown(one) for one in arguments])
    result = app(list(arguments), standalone_mode=False)
    return result if isinstance(result, int) else 0


# Steps


def _work(env: Environment, display: Display, load: Workload) -> None:
    display.line()
    with display.loading(load) as tick:
        apply_workload(env.aws.s3(), env.bucket, load, tick)
    with display.working() as show:
        env.wait_quiet(QUIET_SECONDS_MAX, show)
    env.invoke("sweep", {})  # a whole pass, as once a day; it must find nothing left to do
    env.wait_quiet(QUIET_SECONDS_MAX)


def _show(env: Environment, display: Display, load: Workload, without_spark: str | None) -> int:
    counts = env.counts  # before the commands below, which read the bucket too
    query = ("--filter", "status=active", "--sort", "name:asc", "--select", "name,email,score,tags", "--limit", "8")
    worm(display, "table", "query", "Customer", *query)
    if load.uploads:
        worm(display, "history", "Customer", load.watched)
    worm(display, "table", "list")
    show_trash(env, display, partial(worm, display), load, QUIET_SECONDS_MAX)
    letters = _dead_letters(env)
    display.summary(counts, load.size, letters)
    verified = worm(display, "verify")
    if verified or sum(letters.values()):
        display.line(f"FAILED: {sum(letters.values())} dead letters, verify ended with {verified}", style="bold red")
        return 1
    if without_spark is None:
        show_spark(env, display)
    else:
        display.line()
        display.line(without_spark)
    return 0


def _fire(env: Environment, display: Display, schedule: str) -> None:
    outcome = env.fire(schedule)
    display.line()
    display.line(f"fired the schedule {schedule}: {outcome.kind.value}")
    for line in (str(outcome.value or "") + outcome.error).splitlines():
        display.line(line)


def _dead_letters(env: Environment) -> dict[str, int]:
    names = [source.function for source in env.template.event_sources]
    return {name: len(env.dlq_messages(name)) for name in names}


def _show_how(env: Environment, display: Display, local: LocalApi) -> None:
    """Everything a second shell needs."""
    display.line()
    display.line(f"the embedded AWS runs at {env.endpoint_url}, wired by template.yaml; logs in {env.work_dir}")
    display.line("in another shell:")
    display.line()
    variables = _shell_variables(env)
    for name in _EXPORTS:
        display.line(f"  export {name}={shlex.quote(variables[name])}")
    if shutil.which("worm") is None:
        display.line(f'  export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    display.line()
    key = f"org/customers/{_EXAMPLE_ID}/profile.json"
    document = '{"name": "Acme Corp", "status": "active"}'
    if shutil.which("aws"):
        display.line(f"  echo '{document}' | aws s3 cp - s3://{env.bucket}/{key}")
    else:
        call = f"put_object(Bucket=\"{env.bucket}\", Key=\"{key}\", Body=b'''{document}''')"
        display.line(f"  python -c 'import boto3; boto3.client(\"s3\").{call}'".replace("'''", '"""'))
    display.line("  worm table query Customer")
    display.line(f"  worm history Customer {_EXAMPLE_ID}")
    display.line()
    if env.aws.is_moto:
        _show_containers(env, display)
    display.line(f"the console for this bucket: {local.link}")
    display.line("press Ctrl-C to stop; nothing is kept")


def _show_containers(env: Environment, display: Display) -> None:
    """How containers reach it (`sam local invoke`), and who else can."""
    port, host = urlsplit(env.endpoint_url).port, env.settings.host
    display.line(f"containers reach it at http://{CONTAINER_HOST}:{port} (docs/development.md, sam local invoke)")
    if host in (LOOPBACK, "localhost"):
        display.line(f"on Linux, this needs --host {DOCKER_BRIDGE} (Docker's bridge)")
    else:
        display.line(f"WARNING: anyone who can reach {host} can read and write everything here", style="bold red")
    display.line()


def _watch(env: Environment, display: Display) -> None:
    """Print a line whenever functions did something."""
    seen = _handled(env.counts.functions)
    while True:
        time.sleep(1.0)
        now = _handled(env.counts.functions)
        news = {name: now[name] - seen[name] for name in now if now[name] != seen[name]}
        if news:
            moment = iso_seconds(SystemClock().now())
            display.line(f"{moment}  " + ", ".join(f"{name}: {count} handled" for name, count in news.items()))
        seen = now


def _handled(functions: Mapping[str, FunctionCounts]) -> dict[str, int]:
    return {name: max(found.records_ok, found.invocations) for name, found in functions.items()}


# Surroundings


def _settings(aws: AwsName, endpoint_url: str | None) -> Settings:
    return Settings(
        aws=aws,
        endpoint_url=endpoint_url,
        parameters=PARAMETERS,
        window_seconds=WINDOW_SECONDS,
        work_dir=_work_dir(),
    )


def _work_dir() -> Path:
    """In a checkout, a folder of it; otherwise a temporary one."""
    root = template_path().parent
    if root == _DEPLOYED:
        return Path(tempfile.mkdtemp(prefix="worm-dev-"))
    return root / ".worm-dev" / f"run-{os.getpid()}"


@contextmanager
def _logs(settings: Settings, display: Display) -> Iterator[list[int]]:
    """Remove the logs of a run that put exit code 0 into the list; otherwise print where they are."""
    finished: list[int] = []
    try:
        yield finished
    finally:
        folder = settings.work_dir
        has_logs = folder is not None and folder.is_dir() and any(folder.iterdir())
        if folder is not None and (finished == [0] or not has_logs):
            shutil.rmtree(folder, ignore_errors=True)
        elif has_logs:
            display.line(f"the logs are in {folder}")


def _shell_variables(env: Environment) -> dict[str, str]:
    return {**env.environment, "WORM_URL": f"s3://{env.bucket}", "WORM_MAINTENANCE": "events"}


@contextmanager
def _variables(env: Environment) -> Iterator[None]:
    """This process uses the embedded AWS, as a user's shell would; afterward, the variables are restored."""
    before = dict(os.environ)
    os.environ.update(_shell_variables(env))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _ctrl_c() -> Iterator[None]:
    """SIGTERM stops it like Ctrl-C, and Ctrl-C also works if a shell started it in the background."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shown(argument: str) -> str:
    path, here = Path(argument), Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else argument


if __name__ == "__main__":
    sys.exit(main())
