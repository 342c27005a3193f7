"""The checkup of `worm doctor`: findings about a bucket and its stack, each with what to do about it.

A *finding* is ok, a note, trouble, or unknown (it could not be read). Something unreadable is not trouble. But if it is
the stack itself, the store, the queues or the dead letters, the checkup cannot say that all is well.

Reads only, about forty requests for a bucket of any size. To read the reasons of dead letters, they are received and
given back (`dead_letters.py`). Parts that do not exist (a directory has no queues) are left out.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from worm.clock import Clock, iso_seconds
from worm.errors import Corrupt, NotFound, WormError
from worm.formats import JsonValue
from worm.upkeep.costs import MEMORY_GB, Prices
from worm.upkeep.dead_letters import DeadLetterQueue, queues_of
from worm.upkeep.deployment.aws import Aws, asking
from worm.upkeep.deployment.metrics import Metric, Series, asked_of, of_function, of_worker, queue_age, read_metrics
from worm.upkeep.deployment.stack import FUNCTION, QUEUE, Stack
from worm.upkeep.session import Session
from worm.upkeep.verify_record import last_verify
from worm.values import dataclass

FRESH_SECONDS_MAX = 15 * 60
RECENT = timedelta(minutes=15)
SILENT = timedelta(days=1)
REASONS_SHOWN = 3
SCHEDULED = ("sweep", "purge", "compact")
ESSENTIAL = frozenset({"stack", "store", "queues", "dead letters"})


class State(StrEnum):
    """The state of a finding."""

    ok = "ok"
    note = "note"
    trouble = "trouble"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One line of the report. `next` is the command to run next; `facts` are for programs."""

    area: str
    state: State
    text: str
    next: str | None = None
    facts: Mapping[str, JsonValue] | None = None

    def shape(self) -> dict[str, JsonValue]:
        return {
            "area": self.area,
            "state": self.state.value,
            "text": self.text,
            "next": self.next,
            "facts": dict(self.facts or {}),
        }


def table_freshness(session: Session) -> Iterator[HealthFinding]:
    """When the table of each model last changed; one conditional GET for each."""
    for name, known in session.schema.models.items():
        if not known.keeps_manifest:
            continue
        try:
            with session.table_lock(name):
                root = session.table(name).manifest.root()
        except WormError as error:
            yield HealthFinding("freshness", State.unknown, f"{name}: cannot be read: {error.message}")
            continue
        updated = None if root is None else root.last_updated or None
        told = f"{name}: {'no table yet' if root is None else updated or 'empty'}"
        facts: dict[str, JsonValue] = {"model": name, "updatedAt": updated}
        yield HealthFinding("freshness", State.ok if root is not None else State.note, told, facts=facts)


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a checkup."""

    at: datetime
    url: str | None
    stack: str | None
    findings: tuple[HealthFinding, ...]

    @property
    def problems(self) -> int:
        return sum(one.state is State.trouble for one in self.findings)

    @property
    def unread(self) -> set[str]:
        """The areas that cannot be read."""
        return {one.area for one in self.findings if one.state is State.unknown}

    @property
    def verdict(self) -> str:
        """`trouble`, `unknown` or `healthy`."""
        if self.problems:
            return "trouble"
        return "unknown" if self.unread & ESSENTIAL else "healthy"

    def shape(self) -> dict[str, JsonValue]:
        return {
            "verdict": self.verdict,
            "at": iso_seconds(self.at),
            "url": self.url,
            "stack": self.stack,
            "findings": [one.shape() for one in self.findings],
        }


@dataclass(frozen=True, slots=True)
class BucketSetting:
    """One setting of a bucket. `look` returns its value; None, or `NotFound`, if it is not set."""

    what: str
    look: Callable[[Any, str], str | None]
    problem: str
    is_for_stack: bool = False
    """Only workers need it."""
    is_advice: bool = False
    """It is optional."""


def _versioning(client: Any, bucket: str) -> str | None:
    return "versioning on" if client.get_bucket_versioning(Bucket=bucket).get("Status") == "Enabled" else None


def _events(client: Any, bucket: str) -> str | None:
    found = client.get_bucket_notification_configuration(Bucket=bucket)
    if "EventBridgeConfiguration" in found:
        return "events by EventBridge"
    return "events by SQS" if found.get("QueueConfigurations") else None


def _encryption(client: Any, bucket: str) -> str | None:
    [rule, *_] = client.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    return f"encrypted ({rule['ApplyServerSideEncryptionByDefault']['SSEAlgorithm']})"


def _privacy(client: Any, bucket: str) -> str | None:
    found = client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    return "not public" if all(found.values()) else None


SETTINGS = (
    BucketSetting(
        "versioning",
        _versioning,
        "versioning is off: versions that are overwritten before they are recorded have no history",
        is_for_stack=True,
    ),
    BucketSetting("events", _events, "the bucket sends no events: only the sweep finds changes", is_for_stack=True),
    BucketSetting("encryption", _encryption, "no encryption is set: S3 uses its own key", is_advice=True),
    BucketSetting("public access", _privacy, "public access is not blocked", is_advice=True),
)
"""`worm attach` checks more, and has the command for each."""


class Checkup:
    """One checkup. Without `url`, the documents of the stack are checked. `connect` opens the session on a URL."""

    def __init__(
        self, aws: Aws, clock: Clock, connect: Callable[[str], Session], *, url: str | None, stack: str | None
    ) -> None:
        self._aws = aws
        self._now = clock.now()
        self._connect = connect
        self._url = url
        self._name = stack
        self._stack: Stack | None = None
        self._is_readable = False

    def run(self) -> Health:
        findings = list(self._findings())
        return Health(self._now, self._url, self._name, tuple(findings))

    def _findings(self) -> Iterator[HealthFinding]:
        if self._name is not None:
            yield from self._attempt("stack", self._of_stack)
        if self._stack is not None:
            self._url = self._url or self._stack.url
        if self._url is not None:
            yield from self._attempt("store", self._of_store)
            if self._url.startswith("s3://"):
                yield from self._attempt("bucket", self._of_bucket)
        if self._stack is not None:
            parts = {
                "queues": self._of_queues,
                "dead letters": self._of_dead_letters,
                "freshness": self._of_freshness,
                "functions": self._of_functions,
                "schedules": self._of_schedules,
                "alarms": self._of_alarms,
            }
            for area, part in parts.items():
                yield from self._attempt(area, part)
        if self._is_readable:
            yield from self._attempt("verify", self._of_verify)
        if self._stack is not None:
            yield from self._attempt("cost", self._of_cost)
        elif self._name is None and self._url is not None and self._url.startswith("s3://"):
            told = "no stack named, so queues, dead letters, functions and costs were not checked"
            yield HealthFinding("stack", State.note, told, f"worm doctor --url {shlex.quote(self._url)} --stack STACK")

    def _attempt(self, area: str, part: Callable[[], Iterable[HealthFinding]]) -> list[HealthFinding]:
        try:
            return list(part())
        except Corrupt as error:
            return [
                HealthFinding(area, State.trouble, str(error), f"worm why {shlex.quote(error.key or '')} {self._at}")
            ]
        except WormError as error:
            return [HealthFinding(area, State.unknown, f"cannot be read: {error.for_shell()}")]

    @property
    def _at(self) -> str:
        return f"--url {shlex.quote(self._url or '')}"

    # The stack and its bucket

    def _of_stack(self) -> Iterator[HealthFinding]:
        found = self._stack = Stack.read(self._aws, self._name or "")
        facts = {"status": found.status}
        if found.status.endswith("_COMPLETE") and "ROLLBACK" not in found.status and "DELETE" not in found.status:
            yield HealthFinding("stack", State.ok, found.status, facts=facts)
        elif found.status.endswith("_IN_PROGRESS"):
            yield HealthFinding("stack", State.note, f"{found.status}: a deployment is in progress", facts=facts)
        else:
            reason = f": {found.reason}" if found.reason else ""
            events = f"aws cloudformation describe-stack-events --stack-name {found.name} --max-items 20"
            yield HealthFinding("stack", State.trouble, f"{found.status}{reason}", events, facts)

    @cached_property
    def _session(self) -> Session:
        return self._connect(self._url or "")

    def _of_store(self) -> Iterator[HealthFinding]:
        try:
            models = sorted(self._session.schema.models)
        except NotFound as error:
            if error.key is None:  # the bucket or directory is missing, not only the schema
                raise
            told = f"{self._url} has no schema yet" + ("" if self._name else ", or it is not the location you meant")
            state = State.note if self._name else State.unknown
            yield HealthFinding("store", state, told, f"worm push schema.json {self._at}")
            return
        self._is_readable = True
        names = ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "")
        facts: dict[str, JsonValue] = {"models": [*models]}
        yield HealthFinding("store", State.ok, f"{self._url}: {names or 'a schema without models'}", facts=facts)

    def _of_bucket(self) -> Iterator[HealthFinding]:
        """The required settings. Without a stack nobody needs events, so some of them are only a note."""
        bucket = urlsplit(self._url or "").netloc
        client, good, found = self._aws.client("s3"), list[str](), list[HealthFinding]()
        for setting in SETTINGS:
            try:
                with asking(setting.what):
                    told = setting.look(client, bucket)
            except NotFound:
                told = None
            except WormError as error:
                found.append(HealthFinding("bucket", State.unknown, f"cannot be read: {error.for_shell()}"))
                continue
            if told is not None:
                good.append(told)
            else:
                is_note = setting.is_advice or (setting.is_for_stack and self._name is None)
                state = State.note if is_note else State.trouble
                found.append(HealthFinding("bucket", state, setting.problem, f"worm attach {self._url}"))
        if good:
            yield HealthFinding("bucket", State.ok, ", ".join(good))
        yield from found

    # Queues and dead letters

    @cached_property
    def _deployed(self) -> Stack:
        assert self._stack is not None, "asked for parts of a stack that was not read"
        return self._stack

    def _of_queues(self) -> Iterator[HealthFinding]:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told, facts = [], dict[str, JsonValue]()
        for worker, url in self._deployed.of_workers(QUEUE).items():
            with asking(f"the queue of {worker}"):
                found = self._aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)
            waiting, at_work = (int(found["Attributes"][name]) for name in names)
            told.append(f"{worker} {waiting:,}" + (f" and {at_work:,} in progress" if at_work else ""))
            facts[worker] = {"waiting": waiting, "atWork": at_work}
        yield HealthFinding("queues", State.ok, f"waiting: {', '.join(told)}" if told else "none", facts=facts)

    def _of_dead_letters(self) -> Iterator[HealthFinding]:
        queues = queues_of(self._aws, self._deployed)
        counts = {queue.name: queue.count() for queue in queues}
        if not any(counts.values()):
            yield HealthFinding("dead letters", State.ok, "none")
        for queue in queues:
            if counts[queue.name]:
                yield self._of_letters(queue, counts[queue.name])

    def _of_letters(self, queue: DeadLetterQueue, number: int) -> HealthFinding:
        try:
            with queue.letters() as letters:
                reasons = Counter((one.kind.value, one.reason) for one in letters)
        except WormError as error:
            reasons, told = Counter[tuple[str, str]](), f"their reasons cannot be read: {error.message}"
        else:
            shown = [f"{many:,} {kind} ({reason})" for (kind, reason), many in reasons.most_common(REASONS_SHOWN)]
            told = ", ".join(shown) or "other readers have them"
        facts: dict[str, JsonValue] = {
            "queue": queue.name,
            "count": number,
            "reasons": [{"kind": kind, "reason": reason, "count": many} for (kind, reason), many in reasons.items()],
        }
        command = f"worm dlq list {queue.name} --stack {self._deployed.name}"
        return HealthFinding("dead letters", State.trouble, f"{queue.name} has {number:,}: {told}", command, facts)

    # From CloudWatch

    @cached_property
    def _metrics(self) -> Mapping[Metric, Series]:
        return read_metrics(self._aws, asked_of(self._deployed), self._now)

    def _recent(self, metric: Metric) -> list[float]:
        return [value for at, value in self._metrics[metric] if at >= self._now - RECENT]

    def _total(self, metric: Metric) -> float:
        return sum(value for _, value in self._metrics[metric])

    def _of_freshness(self) -> Iterator[HealthFinding]:
        """The oldest change that is not in its table yet: it waits in a queue, or was folded late."""
        ages = {worker: self._recent(queue_age(url))[-1:] for worker, url in self._deployed.of_workers(QUEUE).items()}
        folded = self._recent(of_worker(self._deployed.name, "tables", "FreshnessSeconds", "Maximum"))[-1:]
        seconds = {f"in the queue of {worker}": age[0] for worker, age in ages.items() if age}
        seconds |= {"until it was in its table": folded[0]} if folded else {}
        where, oldest = max(seconds.items(), key=lambda one: one[1], default=("", 0.0))
        facts: dict[str, JsonValue] = {"oldestSeconds": oldest}
        if oldest > FRESH_SECONDS_MAX:
            worker = where.rpartition(" ")[2] if where.startswith("in the queue") else "tables"
            told = f"the oldest change waited {span(oldest)} {where}"
            yield HealthFinding("freshness", State.trouble, told, self._logs(worker), facts)
        else:
            told = f"the oldest change waited {span(oldest)} {where}" if seconds else "nothing is waiting"
            yield HealthFinding("freshness", State.ok, told, facts=facts)

    def _logs(self, worker: str) -> str:
        function = self._deployed.of_workers(FUNCTION).get(worker, f"{self._deployed.name}-{worker}")
        return f"aws logs tail /aws/lambda/{function} --since 15m --filter-pattern ERROR"

    def _of_functions(self) -> Iterator[HealthFinding]:
        is_fine = True
        for worker, function in self._deployed.of_workers(FUNCTION).items():
            for name, verb in (("Errors", "failed"), ("Throttles", "was throttled")):
                number = round(sum(self._recent(of_function(function, name))))
                if number:
                    is_fine = False
                    told = f"{worker} {verb} {number:,} {'time' if number == 1 else 'times'} in 15 minutes"
                    command = self._logs(worker) if name == "Errors" else "aws lambda get-account-settings"
                    yield HealthFinding(
                        "functions", State.trouble, told, command, {"worker": worker, name.lower(): number}
                    )
        if is_fine:
            yield HealthFinding("functions", State.ok, "no errors and no throttling in 15 minutes")

    def _of_schedules(self) -> Iterator[HealthFinding]:
        for worker, function in self._deployed.of_workers(FUNCTION).items():
            if worker in SCHEDULED:
                yield self._of_schedule(worker, function)
        yield from self._of_sweep()

    def _of_schedule(self, worker: str, function: str) -> HealthFinding:
        runs = [(at, value) for at, value in self._metrics[of_function(function, "Invocations")] if value]
        created = self._deployed.created
        if runs:
            ago = span((self._now - runs[-1][0]).total_seconds())
            many = round(sum(value for _, value in runs))
            facts: dict[str, JsonValue] = {"worker": worker, "last": iso_seconds(runs[-1][0]), "runs": many}
            times = f"{many:,} {'time' if many == 1 else 'times'}"
            return HealthFinding(worker, State.ok, f"ran {ago} ago, {times} in the last day", facts=facts)
        if created is not None and timedelta(0) <= self._now - created < SILENT:
            return HealthFinding(worker, State.note, "has not run yet: the stack is younger than a day")
        command = f"aws lambda invoke --function-name {function} /dev/stdout"
        return HealthFinding(worker, State.trouble, "has not run in the last day", command)

    def _of_sweep(self) -> Iterator[HealthFinding]:
        lost = round(self._total(of_worker(self._deployed.name, "sweep", "FoundUnreported")))
        if lost:
            told = f"found {lost:,} {'change' if lost == 1 else 'changes'} in the last day that no event had reported"
            yield HealthFinding("sweep", State.trouble, told, f"worm verify {self._at}", {"unreported": lost})
        unfinished = self._recent(of_worker(self._deployed.name, "sweep", "SweepUnfinished", "Maximum"))
        if unfinished and unfinished[-1]:
            yield HealthFinding(
                "sweep", State.trouble, "ran out of time; the next run continues", f"worm repair {self._at}"
            )

    def _of_alarms(self) -> Iterator[HealthFinding]:
        with asking("alarms", hint="your role needs cloudwatch:DescribeAlarms"):
            pages = self._aws.client("cloudwatch").get_paginator("describe_alarms")
            asked = pages.paginate(AlarmNamePrefix=f"{self._deployed.name}-")
            found = [one for page in asked for one in page.get("MetricAlarms", ())]
        ringing = sorted(one["AlarmName"] for one in found if one["StateValue"] == "ALARM")
        if not ringing:
            told = f"none of {len(found):,} is in alarm" if found else "there are none"
            yield HealthFinding("alarms", State.ok, told, facts={"alarms": len(found)})
        for name in ringing:
            command = f"aws cloudwatch describe-alarms --alarm-names {shlex.quote(name)}"
            what = f"{name} is in alarm: docs/how-to/recover-from-alarms.md says what to do"
            yield HealthFinding("alarms", State.trouble, what, command)

    # Verification and costs

    def _of_verify(self) -> Iterator[HealthFinding]:
        found = last_verify(self._session.store)
        again = f"worm verify --record {self._at}"
        if found is None:
            yield HealthFinding("verify", State.note, "no verification is recorded", again)
            return
        ago = span((self._now - found.at).total_seconds())
        facts: dict[str, JsonValue] = {"at": iso_seconds(found.at), "differences": found.differences}
        if found.is_clean:
            yield HealthFinding(
                "verify", State.ok, f"no differences in {found.documents:,} documents {ago} ago", None, facts
            )
        else:
            told = f"{found.differences:,} differences {ago} ago; repair, then verify again"
            yield HealthFinding("verify", State.trouble, told, f"worm repair {self._at}", facts)

    def _of_cost(self) -> Iterator[HealthFinding]:
        prices, functions = Prices.read(), self._deployed.of_workers(FUNCTION)
        writes = sum(self._total(of_worker(self._deployed.name, one, "WriteRequests")) for one in functions)
        reads = sum(self._total(of_worker(self._deployed.name, one, "ReadRequests")) for one in functions)
        runs = sum(self._total(of_function(one, "Invocations")) for one in functions.values())
        gb_seconds = sum(
            self._total(of_function(function, "Duration")) / 1000 * self._memory_gb(worker, function)
            for worker, function in functions.items()
        )
        s3, compute = prices.s3({"PUT": writes, "GET": reads}), prices.functions(runs, gb_seconds)
        told = (
            f"${s3 + compute:,.2f} in a day: S3 ${s3:,.2f} ({writes:,.0f} writes and lists, {reads:,.0f} reads), "
            f"Lambda ${compute:,.2f} ({runs:,.0f} runs)"
        )
        facts: dict[str, JsonValue] = {"usd": round(s3 + compute, 6), "writes": writes, "reads": reads, "runs": runs}
        yield HealthFinding("cost", State.ok, told, facts=facts)

    def _memory_gb(self, worker: str, function: str) -> float:
        """The actual setting or, if it cannot be read, that of the template."""
        try:
            with asking(f"the settings of {function}"):
                found = self._aws.client("lambda").get_function_configuration(FunctionName=function)
        except WormError:
            return MEMORY_GB.get(worker, 1.0)
        return float(found["MemorySize"]) / 1024


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `5 h`, `3 days`."""
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"
