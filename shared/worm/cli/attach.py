"""`worm attach`, `worm detach`: prepare an existing bucket for the workers, and undo that."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import existing_file
from worm.cli.attachment import Additions, Attachment, DetachStep, StepOutcome
from worm.cli.bucket_findings import BucketFinding, FindingState, kms_key
from worm.cli.bucket_parts import AttachedPlace, Events, check_queue
from worm.cli.options import EndpointTarget, opened_stores
from worm.cli.output import Progress, Report, ReportFormat, echo, echo_json, printable, progress_bar
from worm.cli.schema import exit_if_damaged, push_shape, show_push
from worm.clock import Clock, Ids, SystemClock
from worm.collections import layout
from worm.errors import Invalid, WormError
from worm.formats import JsonObject, JsonValue, Schema, load_pushed, load_schema
from worm.store import Store, bucket_settings, ensure_safe, open_store, split_url
from worm.upkeep import ModelProgress, PushReport, push

EXIT_MISSING = 1
SETTLE_SECONDS = 900
"""AWS recommends waiting this long before writing to a bucket whose versioning was just turned on."""
DIRECTORY_BUCKET = "--x-s3"
KEY_PREFIX = re.compile("([A-Za-z0-9_][A-Za-z0-9_.=-]*/)+")
"""As the parameter `KeyPrefix` of template.yaml has it."""
STACK_NAME_MAX = 50
Url = Annotated[str, typer.Argument(metavar="URL", help="s3://bucket, or a prefix of it: s3://bucket/prefix.")]
Apply = Annotated[bool, typer.Option("--apply", help="Apply the changes; without it, nothing is changed.")]


def attach(
    target: EndpointTarget,
    url: Url,
    apply: Apply = False,
    events: Annotated[Events, typer.Option("--events", help="How S3 reports uploads.")] = Events.eventbridge,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="ARN", help="The stack's capture queue, for --events sqs.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option("--push", metavar="SCHEMA", help="Push this schema, then adopt existing documents.")
    ] = None,
    settle: Annotated[
        int,
        typer.Option(
            "--settle", metavar="SECONDS", min=0, help="After turning on versioning, wait this long before adopting."
        ),
    ] = SETTLE_SECONDS,
    format: Report = ReportFormat.table,
) -> None:
    """Check whether the workers can serve an existing bucket: show what is missing and how to fix it, or fix it with
    --apply.

    Other settings of the bucket are never touched. Exit code 1 if something that the workers need is missing.
    """
    if schema is not None and not apply:
        raise Invalid("--push changes the bucket, so it needs --apply", hint="add --apply, or leave --push out")
    if queue is not None and events is not Events.sqs:
        raise Invalid("--queue is for --events sqs", hint="add --events sqs, or leave --queue out")
    definition = None if schema is None else load_schema(existing_file(schema))
    opened = _Opened(url, target.endpoint_url, events, queue)
    findings, applied = opened.attachment.look(), Additions()
    if apply and not any(one.stands_in_the_way and not one.parts for one in findings):
        ensure_safe(opened.store)
        applied = opened.attachment.apply(findings)
        findings = [_with_failure(one, applied) for one in opened.attachment.look()]
    is_ready = not any(one.stands_in_the_way for one in findings)
    shown = _Shown(opened, format is ReportFormat.json, apply)
    shown.findings(findings, applied)
    report = opened.adopt(definition, settle, shown) if apply and is_ready else None
    shown.end(findings, applied, report)
    if not is_ready:
        raise typer.Exit(EXIT_MISSING)
    if report is not None:
        exit_if_damaged(report)


def _with_failure(finding: BucketFinding, applied: Additions) -> BucketFinding:
    refusal = applied.failures.get(finding.setting)
    if refusal is None or finding.state is not FindingState.MISSING:
        return finding
    return replace(finding, reason=f"{finding.reason}. It was not added: {refusal.for_shell()}")


class _Opened:
    """The location that a URL names, and its tools."""

    def __init__(self, url: str, endpoint_url: str | None, events: Events, queue: str | None) -> None:
        self.clock: Clock = SystemClock()
        ids = Ids.system(self.clock)
        bucket, prefix = _parsed(url)
        settings = bucket_settings.BucketSettings(bucket, endpoint_url=endpoint_url, clock=self.clock, ids=ids)
        region = settings.region
        arn = None if queue is None else check_queue(queue, region)
        self.place = AttachedPlace(bucket, prefix, region, events, arn, settings.endpoint_url)

        def opened(place: str) -> Store:
            store = open_store(place, endpoint_url=endpoint_url, region=region, clock=self.clock, ids=ids)
            opened_stores.append(store)
            return store

        self.store = opened(self.place.url)
        self.attachment = Attachment(self.store, opened(f"s3://{bucket}"), settings, self.place, self.clock)

    def adopt(self, schema: Schema | None, settle: int, shown: _Shown) -> PushReport | None:
        """Push the schema, or the one that is already pushed, and adopt existing documents; None without either."""
        if schema is None:
            found = self.store.get(layout.SCHEMA_KEY)
            schema = None if found is None else load_pushed(found.body, layout.SCHEMA_KEY)
        if schema is None:
            return None
        self._settle(settle, shown)
        with progress_bar("documents", is_hidden=shown.is_json) as bar:
            report = push(self.store, schema, progress=_in_bar(bar))
        if not shown.is_json:
            show_push(self.store, schema, report)
        return report

    def _settle(self, seconds: int, shown: _Shown) -> None:
        record = self.attachment.record()
        began = None if record is None else record.versioned_at()
        left = 0.0 if began is None else seconds - (self.clock.now() - began).total_seconds()
        if left > 0:
            shown.note(f"versioning was just turned on: waiting {left:,.0f} s, as AWS recommends, before adopting")
            shown.note("documents. You can interrupt this; run the same command again to continue")
            self.clock.sleep(left)

    def deploy_line(self) -> str:
        """How to deploy the stack for this place."""
        overrides = [f"ExistingBucketName={self.place.bucket}"]
        overrides += [f"KeyPrefix={self.place.prefix}"] if self.place.prefix else []
        overrides += [f"Events={self.place.events.value}"]
        quoted = [shlex.quote(one) for one in overrides]
        key = kms_key(self.attachment.settings["encryption"])
        if key is not None:
            by_name = f'"$(aws kms describe-key --key-id {shlex.quote(key)} --query KeyMetadata.Arn --output text)"'
            is_arn = key.startswith("arn:") and ":key/" in key
            quoted.append(f"KmsKeyArn={shlex.quote(key) if is_arn else by_name}")
        place = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.place.bucket}-{self.place.prefix}").strip("-")
        stack = f"worm-{place}"[:STACK_NAME_MAX].rstrip("-")  # one per location; the names of functions contain it
        return f"sam deploy --stack-name {stack} --region {self.place.region} --parameter-overrides {' '.join(quoted)}"


def _in_bar(bar: Progress) -> ModelProgress:
    return lambda model, done, total: bar(done, total)


def _parsed(url: str) -> tuple[str, str]:
    """Bucket and prefix. A slash is added to a prefix without one: the workers see whole path segments."""
    parts = split_url(url)
    if parts.scheme != "s3":
        raise Invalid(f"{parts.text!r} is not a bucket", hint="only buckets have settings: write s3://bucket[/prefix]")
    bucket, prefix = parts.bucket_and_prefix()
    if bucket.endswith(DIRECTORY_BUCKET):
        raise Invalid(f"{bucket!r} is a directory bucket, which keeps no versions", hint="use a general purpose bucket")
    prefix = prefix.strip("/")
    if prefix and not KEY_PREFIX.fullmatch(f"{prefix}/"):
        raise Invalid(
            f"a stack cannot be deployed for the prefix {prefix!r}",
            hint="use folder names of letters, digits and _ . = - that do not start with a dot",
        )
    return bucket, f"{prefix}/" if prefix else ""


class _Shown:
    """Shows the result, as text for people or as one JSON object."""

    def __init__(self, opened: _Opened, is_json: bool, is_applied: bool) -> None:
        self.is_json, self._opened, self._is_applied = is_json, opened, is_applied

    def note(self, text: str) -> None:
        echo(f"worm: {text}", err=True)

    def findings(self, findings: Sequence[BucketFinding], applied: Additions) -> None:
        if self.is_json:
            return
        place = self._opened.place
        echo(f"{place.url}, {place.region}")
        for name in applied.added:
            echo(f"added {name}")
        echo()
        for one in findings:
            state = f"{one.state.value}{', needed' if one.stands_in_the_way else ''}"
            echo(f"  {one.setting:<15} {state:<19} {printable(one.reason)}")
        reasons: dict[str, list[str]] = {}
        for one in findings:
            if one.command is not None:
                reasons.setdefault(one.command, []).append(f"# {one.setting}: {printable(one.reason)}")
        if reasons:
            echo(
                "\nCommands. If there are several for one setting, run one and "
                "check again: each contains the current settings."
            )
        for mend, told in reasons.items():
            echo("\n" + "\n".join([*told, mend]))

    def end(self, findings: Sequence[BucketFinding], applied: Additions, report: PushReport | None) -> None:
        steps = list(self._next_steps(findings, report))
        if self.is_json:
            place = self._opened.place
            shape: JsonObject = {
                "url": place.url,
                "bucket": place.bucket,
                "prefix": place.prefix,
                "region": place.region,
                "events": place.events.value,
                "queue": place.queue,
                "applied": self._is_applied,
                "ready": not any(one.stands_in_the_way for one in findings),
                "findings": [one.shape() for one in findings],
                "added": list[JsonValue](applied.added),
                "push": None if report is None else push_shape(report),
                "deploy": self._opened.deploy_line(),
                "next": list[JsonValue](steps),
            }
            echo_json(shape)
            return
        echo()
        for step in steps:
            echo(step)
        echo(f"Deploy:  {self._opened.deploy_line()}")

    def _next_steps(self, findings: Sequence[BucketFinding], report: PushReport | None) -> Iterable[str]:
        place = shlex.quote(self._opened.place.url)
        if any(one.stands_in_the_way for one in findings):
            told = [one for one in findings if one.stands_in_the_way and not one.parts]
            if told and self._is_applied:
                yield "Nothing was changed, because the workers cannot use this bucket."
            needed = ", ".join(dict.fromkeys(one.setting for one in findings if one.stands_in_the_way))
            hint = "" if told or self._is_applied else f", or run `worm attach {place} --apply`"
            yield f"Not ready ({needed}): fix what is needed{hint}."
        elif not self._is_applied:
            yield (
                f"Ready. Run `worm attach {place} --apply` to record that, add "
                "what is missing and adopt existing documents."
            )
        elif report is None:
            yield f"No schema is pushed. To infer one: worm import --url {place} --output schema.json"
            yield f"Review it, then run: worm attach {place} --apply --push schema.json"


# Detach


def detach(
    target: EndpointTarget,
    url: Url,
    apply: Apply = False,
    format: Report = ReportFormat.table,
) -> None:
    """Remove from a bucket's settings what attach added, and nothing else.

    Documents, histories and tables stay, and so does versioning. Delete the stack first.
    """
    opened = _Opened(url, target.endpoint_url, Events.eventbridge, None)
    record, steps = opened.attachment.plan_detach()
    failures = opened.attachment.detach(record, steps) if apply else {}
    if format is ReportFormat.json:
        echo_json(
            {
                "url": opened.place.url,
                "applied": apply,
                "steps": [one.shape() for one in steps],
                "failures": {name: error.for_shell() for name, error in failures.items()},
            }
        )
    else:
        _show_detached(opened.place, steps, failures, is_applied=apply)
    if failures:
        raise typer.Exit(next(iter(failures.values())).exit_code)


def _show_detached(
    place: AttachedPlace, steps: Sequence[DetachStep], failures: dict[str, WormError], *, is_applied: bool
) -> None:
    echo(f"{place.url}, {place.region}")
    for step in steps:
        part, refusal = step.added.part, failures.get(step.added.part.setting)
        verb = step.outcome.value
        if step.outcome is StepOutcome.REMOVED:
            verb = "not removed" if refusal is not None else "removed" if is_applied else "would be removed"
        echo(f"  {verb:<16}  {part.name}: {refusal.for_shell() if refusal is not None else step.reason}")
    if not steps:
        echo("  attach added nothing here")
    if not is_applied:
        echo("nothing was changed; run it with --apply. Other users of the bucket's EventBridge events lose them too")
    elif not failures:
        echo("documents, histories and tables are unchanged")
