"""Spark sessions for tests, in this process or in a driver of their own (which has no pytest)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.emulators import CREDENTIALS, ROOT

CLUSTER = "local-cluster[2,1,1024]"
"""Two executors, each a process of its own."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java that lives for a minute: the second compiler would take more time than it saves."""
PYTHON_PATH = os.pathsep.join([str(ROOT / "shared"), str(ROOT)])
JOIN_SECONDS = 90.0


def new_session(master: str, **conf: str) -> SparkSession:
    """A session whose Python workers see this tree. In names of settings `__` stands for a dot."""
    path = os.pathsep.join([PYTHON_PATH, os.environ.get("PYTHONPATH", "")])
    os.environ.update(CREDENTIALS)
    os.environ["PYTHONPATH"] = path
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.executorEnv.PYTHONPATH": path,
        **{f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()},
        **{name.replace("__", "."): value for name, value in conf.items()},
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextlib.contextmanager
def another_host(spark: SparkSession, scratch: Path) -> Iterator[None]:
    """A third executor, at another address, for a session on `CLUSTER`. Spark runs the second attempt of a slow task
    only on a host that had no attempt of it, and the executors of `local-cluster` share one: without this a
    speculative attempt never starts."""
    home, executors = Path(pyspark.__file__).parent, spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"]
    place = ["--host", "127.0.0.2", "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(scratch)]
    settings = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
    before = int(executors().size())
    with (scratch / "worker.log").open("wb") as log:
        # spark-class ends in exec: the process is the worker itself.
        worker = subprocess.Popen([*command, *place, _master(spark)], env=settings, stdout=log, stderr=log)
    try:
        until = time.monotonic() + JOIN_SECONDS
        while int(executors().size()) <= before:
            assert worker.poll() is None, (scratch / "worker.log").read_text()[-2000:]
            assert time.monotonic() < until, "no executor at the other address"
            time.sleep(0.1)
        yield
    finally:
        worker.terminate()
        worker.wait(30)


def _master(spark: SparkSession) -> str:
    """The address of the master inside of a `local-cluster`, which Spark keeps to itself."""
    backend = spark.sparkContext._jsc.sc().schedulerBackend()
    field = backend.getClass().getDeclaredField("masters")
    field.setAccessible(True)
    return str(field.get(backend)[0])


def executor_pid() -> int:
    """In a task on `CLUSTER`: the process of its executor, which started the daemon that started this worker."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    pid = int(stat.rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes(), f"{pid} is no executor"
    return pid
