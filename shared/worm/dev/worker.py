"""One Lambda execution environment: a process under AWS's own runtime client, and the Runtime API it talks to.

Each worker has its own Runtime API listener, so an event given to a process that dies can never reach another one.
An invocation ends in an `Outcome`: the function's answer, its error, a timeout (the process group is killed with -9, as
in Lambda) or the death of the process.

Memory and `/tmp` have the limits of the function. A process whose resident memory was ever above `MemorySize` is
killed, as in Lambda; its peak is checked every `WATCH_SECONDS` and again when it answers, so that no excess goes
unnoticed (on Linux, where /proc shows it). A single allocation of far more than the limit fails by itself: the limit on
the address space, which threads and allocators reserve far beyond what they use, is ADDRESS_SPACE_FACTOR times the
memory plus ADDRESS_SPACE_BASE_MB. Each process has its own `TMPDIR`; if that holds more than `EphemeralStorage`, the
process ends too (in Lambda, the write fails).
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from worm.dev.aws import stop_group
from worm.dev.specs import FunctionSpec

ADDRESS_SPACE_FACTOR = 3
ADDRESS_SPACE_BASE_MB = 2048
INIT_SECONDS_MAX = 30.0
WATCH_SECONDS = 0.02
_MB = 1024 * 1024
_API = "/2018-06-01/runtime"


class OutcomeKind(Enum):
    OK = "ok"
    ERROR = "error"  # the handler raised
    TIMEOUT = "timeout"  # killed after the function's timeout
    DIED = "died"  # the process ended by itself or was killed
    INIT = "init"  # the handler could not be imported


@dataclass(frozen=True, slots=True)
class Outcome:
    """`value` is the handler's answer when `kind` is OK; `error` says what went wrong otherwise."""

    kind: OutcomeKind
    value: object = None
    error: str = ""


@dataclass
class _Invocation:
    payload: bytes
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    picked: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None

    def finish(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
        self.picked.set()
        self.done.set()


class Worker:
    """One process. `invoke` runs one event at a time; a worker that is no longer `alive` must be closed."""

    def __init__(self, spec: FunctionSpec, environment: Mapping[str, str], log_path: Path) -> None:
        self._spec = spec
        self._log_path = log_path
        self._inbox: queue.Queue[_Invocation | None] = queue.Queue()
        self._current: _Invocation | None = None
        self._init_error: str | None = None
        self._excess: str | None = None
        self.peak_mb = 0.0
        self._tmp = tempfile.mkdtemp(prefix=f"{spec.name}-tmp-", dir=log_path.parent)
        self._server = _RuntimeApi(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="runtime-api").start()
        own = {"AWS_LAMBDA_RUNTIME_API": self._server.address, "TMPDIR": self._tmp}
        self._process = self._spawn({**environment, **own})
        self.pid = self._process.pid
        threading.Thread(target=self._watch, daemon=True, name=f"watch-{spec.name}").start()
        threading.Thread(target=self._watch_limits, daemon=True, name=f"limits-{spec.name}").start()

    @property
    def alive(self) -> bool:
        return self._excess is None and self._process.poll() is None

    def invoke(self, payload: bytes) -> Outcome:
        """Runs the handler with the event. Blocks until there is an outcome, at most init + timeout."""
        invocation = _Invocation(payload)
        self._current = invocation
        self._inbox.put(invocation)
        if not self.alive:
            invocation.finish(self._death())
        if not invocation.picked.wait(INIT_SECONDS_MAX):
            self.kill()
            invocation.finish(Outcome(OutcomeKind.INIT, error=f"did not start within {INIT_SECONDS_MAX:g} s"))
        elif not invocation.done.wait(self._spec.timeout_seconds):
            self.kill()
            invocation.finish(Outcome(OutcomeKind.TIMEOUT, error=f"timed out after {self._spec.timeout_seconds} s"))
        self._current = None
        assert invocation.outcome is not None
        return invocation.outcome

    def kill(self) -> None:
        """kill -9 the process and its children."""
        stop_group(self._process)

    def close(self) -> None:
        self.kill()
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self._tmp, ignore_errors=True)

    # --- called by the Runtime API

    def next_invocation(self) -> _Invocation | None:
        invocation = self._inbox.get()
        if invocation is not None:
            invocation.picked.set()
        return invocation

    def headers_for(self, invocation: _Invocation) -> dict[str, str]:
        deadline_ms = int((time.time() + self._spec.timeout_seconds) * 1000)
        return {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
            "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": self._spec.arn,
            "Lambda-Runtime-Trace-Id": "Root=1-00000000-000000000000000000000000;Sampled=0",
        }

    def answered(self, request_id: str, outcome: Outcome) -> bool:
        """False if nobody waits for that request."""
        invocation = self._current
        if invocation is None or invocation.request_id != request_id:
            return False
        if self._is_over():
            self.kill()
            outcome = self._death()
        invocation.finish(outcome)
        return True

    def init_failed(self, error: str) -> None:
        self._init_error = error

    # ---

    def _spawn(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "awslambdaric", self._spec.handler],
                cwd=self._spec.code_dir,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if sys.platform == "linux":
            import resource

            size = (ADDRESS_SPACE_FACTOR * self._spec.memory_mb + ADDRESS_SPACE_BASE_MB) * _MB
            resource.prlimit(process.pid, resource.RLIMIT_AS, (size, size))
        return process

    def _watch(self) -> None:
        # Waiting without reaping keeps Popen's own bookkeeping to one thread at a time.
        with suppress(ChildProcessError):  # somebody already reaped it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._inbox.put(None)
        invocation = self._current
        if invocation is not None:
            invocation.finish(self._death())

    def _watch_limits(self) -> None:
        while self.alive:
            if self._is_over():
                self.kill()
                return
            time.sleep(WATCH_SECONDS)

    def _is_over(self) -> bool:
        """Whether the process exceeded the memory of its function, or the limit of its temporary directory."""
        self.peak_mb = max(self.peak_mb, _peak_bytes(self.pid) / _MB)
        stored = _stored_bytes(self._tmp) / _MB
        if self.peak_mb > self._spec.memory_mb:
            used = f"used {self.peak_mb:.0f} MB of {self._spec.memory_mb} MB"
            self._excess = f"Runtime exited with error: signal: killed: out of memory, {used}"
        elif stored > self._spec.tmp_mb:
            self._excess = f"no space left on device: {stored:.0f} MB of {self._spec.tmp_mb} MB in /tmp"
        return self._excess is not None

    def _death(self) -> Outcome:
        if self._excess is not None:
            return Outcome(OutcomeKind.DIED, error=f"{self._excess}\n{self.last_lines()}")
        if self._init_error is not None:
            lines = f"{self._init_error}\n{self.last_lines()}"
            return Outcome(OutcomeKind.INIT, error=f"{self._spec.name} could not be imported: {lines}")
        code = self._process.wait()
        return Outcome(OutcomeKind.DIED, error=f"process {self.pid} ended with {code}\n{self.last_lines()}")

    def last_lines(self, count: int = 20) -> str:
        """The end of the function's log."""
        if not self._log_path.exists():
            return ""
        with self._log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 16384))
            return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-count:])


def _peak_bytes(pid: int) -> int:
    """The most resident memory that the process ever had; 0 if the system does not report it."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _stored_bytes(folder: str) -> int:
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted in the meantime
                size += (Path(path) / name).lstat().st_size
    return size


class _RuntimeApi(ThreadingHTTPServer):
    """The Runtime API of one worker."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, worker: Worker) -> None:
        super().__init__(("127.0.0.1", 0), _RuntimeHandler)
        self.worker = worker

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A process killed in the middle of a request breaks its connection; `_watch` notices its death."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            # Both are passed on unchanged; their type in the base class is private.
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _RuntimeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _RuntimeApi

    def do_GET(self) -> None:
        worker = self.server.worker
        invocation = worker.next_invocation() if self.path == f"{_API}/invocation/next" else None
        if invocation is None:
            self._answer(404, b"{}", {})
        else:
            self._answer(200, invocation.payload, worker.headers_for(invocation))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        worker = self.server.worker
        if self.path == f"{_API}/init/error":
            worker.init_failed(_error_text(body))
            self._answer(202, b"{}", {})
            return
        request_id, _, what = self.path.removeprefix(f"{_API}/invocation/").partition("/")
        outcome = _outcome(what, body)
        known = outcome is not None and worker.answered(request_id, outcome)
        self._answer(202 if known else 400, b"{}", {})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _outcome(what: str, body: bytes) -> Outcome | None:
    if what == "response":
        try:
            return Outcome(OutcomeKind.OK, value=json.loads(body) if body else None)
        except ValueError as error:
            return Outcome(OutcomeKind.ERROR, error=f"the answer is not JSON: {error}")
    return Outcome(OutcomeKind.ERROR, error=_error_text(body)) if what == "error" else None


def _error_text(body: bytes) -> str:
    try:
        error = json.loads(body)
        trace = "".join(error.get("stackTrace") or ())
        return f"{error.get('errorType')}: {error.get('errorMessage')}\n{trace}".strip()
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace")
