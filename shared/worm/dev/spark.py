"""EMR Serverless on this machine: a job run is a local spark-submit of the same entry point with the same arguments.

Differences from EMR: the master is this machine, the code is what is installed instead of the packaged archive, and
the endpoint is passed in. A failed run is reported to EventBridge as on EMR, so that the template's rule and
dead-letter queue see it. Spark binds only to the loopback address.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from worm.dev.aws import Aws, stop_group
from worm.dev.specs import PACKAGE_FOLDER, SparkJobSpec
from worm.dev.worker import Outcome, OutcomeKind
from worm.errors import NotFound

if TYPE_CHECKING:
    from mypy_boto3_events.type_defs import PutEventsRequestEntryTypeDef

ENTRY_POINT = Path("spark_jobs") / "launch.py"
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ERROR_LINES = 15
JAVA_LEAST = 17
INSTALL = "pip install 's3worm[spark]'"


def spark_problem() -> str | None:
    """Why no job can run here, in one line; None if nothing is missing."""
    if not _spark_submit().exists():
        return f"Spark is not installed, so it rebuilds nothing here ({INSTALL})"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    found = _java_version(java)
    if found is None or found < JAVA_LEAST:
        what = f"{java} does not start" if found is None else f"{java} is Java {found}"
        return f"Spark needs Java {JAVA_LEAST} or newer, so it rebuilds nothing here ({what})"
    return None


def _spark_submit() -> Path:
    return Path(sys.executable).parent / "spark-submit"


def _java_version(java: str) -> int | None:
    """8 for `1.8.0`."""
    command = [java, "-version"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stdout)
    return int(found[1]) if done.returncode == 0 and found else None


class LocalSpark:
    """Runs jobs one after the other; `stop` ends the one that runs."""

    def __init__(self, aws: Aws, root: Path, work_dir: Path, *, master: str = "local[2]") -> None:
        self._aws = aws
        self._root = root
        self._work_dir = work_dir
        self._master = master
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def log_path(self, job: str) -> Path:
        """The file with everything that Spark printed, except the job's own output."""
        return self._work_dir / f"spark-{job}.log"

    def command(self, job: SparkJobSpec) -> list[str]:
        """`NotFound` if pyspark is not installed."""
        submit = _spark_submit()
        if not submit.exists():
            raise NotFound(f"there is no {submit}", hint=INSTALL)
        conf = [part for name, value in _CONF.items() for part in ("--conf", f"{name}={value}")]
        arguments = [job.name, *job.arguments, "--endpoint-url", self._aws.endpoint_url]
        return [str(submit), "--master", self._master, *conf, str(self._root / ENTRY_POINT), *arguments]

    def run(self, job: SparkJobSpec) -> Outcome:
        """Waits for the end. `value` is what the job printed, `error` the end of it if the job failed."""
        command = self.command(job)
        with self._turn, self.log_path(job.name).open("ab") as log:
            outcome = self._wait(job, command, log.fileno())
        if outcome.kind is not OutcomeKind.OK:
            self._report(job, "FAILED" if outcome.kind is OutcomeKind.ERROR else "CANCELLED", outcome.error)
        return outcome

    def stop(self) -> None:
        process = self._process
        if process is not None:
            stop_group(process)

    def _wait(self, job: SparkJobSpec, command: list[str], log: int) -> Outcome:
        process = subprocess.Popen(
            command,
            cwd=self._work_dir,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        self._process = process
        try:
            printed, _ = process.communicate(timeout=job.timeout_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(OutcomeKind.TIMEOUT, error=f"killed after {job.timeout_seconds:g} s")
        finally:
            stop_group(process)
            self._process = None
        text = printed.decode("utf-8", "replace")
        if process.returncode == 0:
            return Outcome(OutcomeKind.OK, value=text)
        if process.returncode < 0:
            return Outcome(OutcomeKind.DIED, value=text, error=f"killed by signal {-process.returncode}")
        # spark-submit sends both Python outputs to its own standard output.
        said = text or self.log_path(job.name).read_text(errors="replace")
        tail = said.splitlines()[-_ERROR_LINES:]
        return Outcome(OutcomeKind.ERROR, value=text, error="\n".join([f"exit code {process.returncode}", *tail]))

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPARK_", "WORM_"))}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(PACKAGE_FOLDER), str(self._root)]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # Readers of a job's output cannot act on Spark's warnings about future pandas versions.
            "PYTHONWARNINGS": "ignore::FutureWarning",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self._aws.environment(),
            "WORM_ROLE": "spark",
        }

    def _report(self, job: SparkJobSpec, state: str, details: str) -> None:
        """Reports like EMR Serverless to EventBridge. Only moto accepts an event in the name of an AWS service."""
        if not self._aws.is_moto:
            return
        detail = {
            "jobRunName": job.name,
            "applicationId": job.application,
            "state": state,
            "previousState": "RUNNING",
            "stateDetails": details[:1000],
        }
        entry: PutEventsRequestEntryTypeDef = {
            "Source": "aws.emr-serverless",
            "DetailType": "EMR Serverless Job Run State Change",
            "Detail": json.dumps(detail),
        }
        self._aws.events().put_events(Entries=[entry])
