"""attach: adds what the workers need to an existing bucket, or to a prefix of it. detach: removes what attach added.

The *record* (`.worm.attached.json` below the prefix) names every part that attach added. It is written before the
settings, with each part as planned, and again after each setting. So after a crash detach knows every part. If a part
was only planned, detach removes it if its name is unique, and leaves switches that anybody may have turned on.

Parts that somebody changed since stay. Versioning always stays: without it, the next overwrite would be lost forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import reduce
from typing import cast

from worm.cli.bucket_findings import (
    BucketFinding,
    FindingState,
    Settings,
    command,
    judge,
    nested,
    region_finding,
)
from worm.cli.bucket_parts import AttachedPlace, Events, SettingPart, attached_prefixes, parts
from worm.clock import Clock, iso_seconds, moment_of
from worm.collections import layout
from worm.errors import Conflict, Denied, Invalid, NotFound, WormError
from worm.formats import JsonObject, JsonValue, dumps, loads_own, shapes
from worm.store import BucketSettings, Gone, Lost, Store, Unreadable, Won, same

VERSION = 1
AGAIN = "run the same command again"
_ADDED = shapes.record(
    "a part that attach added",
    {
        "setting": shapes.TEXT,
        "member": shapes.TEXT,
        "id": shapes.TEXT,
        "value": shapes.ANYTHING,
        "was": shapes.ANYTHING,
        "at": shapes.TIME,
        "isDone": shapes.FLAG,
    },
)
RECORD = shapes.record(
    "a record of worm attach",
    {
        "version": shapes.one_of(VERSION),
        "bucket": shapes.TEXT,
        "prefix": shapes.TEXT,
        "events": shapes.one_of(*(one.value for one in Events)),
        "queue": shapes.nullable(shapes.TEXT),
        "added": shapes.list_of(_ADDED),
    },
)


@dataclass(frozen=True, slots=True)
class AddedPart:
    """A part, the previous value, and whether we are known to have added it."""

    part: SettingPart
    was: JsonValue
    at: str
    is_done: bool = False

    @property
    def name(self) -> tuple[str, str, JsonValue]:
        return name_of(self.part)

    def shape(self) -> JsonObject:
        part = self.part
        about: JsonObject = {"setting": part.setting, "member": part.member, "id": part.id_name, "value": part.value}
        return {**about, "was": self.was, "at": self.at, "isDone": self.is_done}


@dataclass(frozen=True, slots=True)
class AttachRecord:
    """What attach added to this location; `etag` of the stored record, None if it is not stored."""

    place: AttachedPlace
    added: tuple[AddedPart, ...] = ()
    etag: str | None = None

    @classmethod
    def read(cls, store: Store, place: AttachedPlace) -> AttachRecord | None:
        """The record of this location. `Invalid` if it was copied from another location."""
        found = store.get(layout.ATTACHED_KEY)
        if found is None:
            return None
        shape = loads_own(found.body, layout.ATTACHED_KEY)
        shapes.check(shape, RECORD, layout.ATTACHED_KEY, hint="it was edited; restore an older version of it")
        if (shape["bucket"], shape["prefix"]) != (place.bucket, place.prefix):
            there = f"s3://{shape['bucket']}/{shape['prefix']}"
            raise Invalid(
                f"the record belongs to another location: {there}",
                key=layout.ATTACHED_KEY,
                hint="it was copied here: delete it",
            )
        queue = cast("str | None", shape["queue"])
        known = replace(place, events=Events(cast(str, shape["events"])), queue=queue)
        # Anyone who may write below the prefix may write this: only names that attach uses are trusted.
        ours = {name_of(part) for part in parts(replace(place, events=Events.sqs, queue="any"))}
        listed = [_decoded(cast(JsonObject, one)) for one in cast("list[JsonValue]", shape["added"])]
        return cls(known, tuple(one for one in listed if one.name in ours), found.etag)

    def write(self, store: Store, stored: AttachRecord | None) -> AttachRecord:
        """Stores the record, unless it is unchanged."""
        if self == stored:
            return self
        shape: JsonObject = {
            "version": VERSION,
            "bucket": self.place.bucket,
            "prefix": self.place.prefix,
            "events": self.place.events.value,
            "queue": self.place.queue,
            "added": [one.shape() for one in self.added],
        }
        outcome: Won | Lost | Gone
        if self.etag is None:
            outcome = store.put_if_absent(layout.ATTACHED_KEY, dumps(shape))
        else:
            outcome = store.put_if_match(layout.ATTACHED_KEY, dumps(shape), self.etag)
        if not isinstance(outcome, Won):
            raise Conflict("another attach or detach is running", key=layout.ATTACHED_KEY, hint=AGAIN)
        return replace(self, etag=outcome.etag)

    def planning(self, missing: Iterable[SettingPart], settings: Settings, now: datetime) -> AttachRecord:
        """With the parts that are about to be added."""
        planned = {one.name: one for one in self.added}
        for part in missing:
            current = settings[part.setting]
            was = None if isinstance(current, Unreadable) else part.there(current)
            planned[name_of(part)] = AddedPart(part, was, iso_seconds(now))
        return replace(self, added=tuple(planned.values()))

    def versioned_at(self) -> datetime | None:
        """When attach turned versioning on."""
        return next((moment_of(one.at) for one in self.added if one.part.setting == "versioning"), None)


def name_of(part: SettingPart) -> tuple[str, str, JsonValue]:
    own = part.value.get(part.id_name) if part.id_name and isinstance(part.value, dict) else None
    return part.setting, part.member, own


def _decoded(shape: JsonObject) -> AddedPart:
    part = SettingPart(cast(str, shape["setting"]), cast(str, shape["member"]), shape["value"], cast(str, shape["id"]))
    return AddedPart(part, shape["was"], cast(str, shape["at"]), cast(bool, shape["isDone"]))


@dataclass(slots=True)
class Additions:
    """The result of attach: names of the added parts, and errors by setting."""

    added: list[str] = field(default_factory=list)
    failures: dict[str, WormError] = field(default_factory=dict)


class StepOutcome(StrEnum):
    """What detach does with a part."""

    REMOVED = "removed"
    STAYS = "stays"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class DetachStep:
    """One part of the record, and what detach does or would do with it."""

    added: AddedPart
    outcome: StepOutcome
    reason: str

    def shape(self) -> JsonObject:
        part = self.added.part
        return {"setting": part.setting, "part": part.name, "outcome": self.outcome.value, "reason": self.reason}


class Attachment:
    """A location, its settings and its record. `root` is the store of the whole bucket."""

    def __init__(self, store: Store, root: Store, bucket: BucketSettings, place: AttachedPlace, clock: Clock) -> None:
        self.place = place
        self.settings: Settings = {}
        self._store, self._root, self._bucket, self._clock = store, root, bucket, clock

    def look(self) -> list[BucketFinding]:
        """Read every setting, and evaluate it."""
        self.settings = self._bucket.read_all()
        region = region_finding(self.place, self._bucket.configured_region)
        return [*judge(self.place, self.settings), region, *self._outer()]

    def _outer(self) -> list[BucketFinding]:
        """Attached prefixes around this one that no lifecycle rule shows."""
        steps = self.place.prefix.split("/")[:-2]
        around = ["", *("/".join(steps[: at + 1]) + "/" for at in range(len(steps)))] if self.place.prefix else []
        known = attached_prefixes(self.settings["lifecycle"])
        try:
            found = [
                one for one in around if one not in known and self._root.head(f"{one}{layout.ATTACHED_KEY}") is not None
            ]
        except Denied:
            reason = "cannot check whether a prefix around this one is attached: you lack s3:GetObject there"
            return [BucketFinding("prefix", FindingState.UNREADABLE, reason)]
        return [nested(self.place, one) for one in found]

    def record(self) -> AttachRecord | None:
        return AttachRecord.read(self._store, self.place)

    def apply(self, findings: Iterable[BucketFinding]) -> Additions:
        """Add what is missing. If S3 refuses a setting, that is reported; the rest is done anyway."""
        missing = [part for one in findings for part in one.parts]
        applied, stored = Additions(), self.record()
        record = replace(stored or AttachRecord(self.place), place=self.place)
        record = record.planning(missing, self.settings, self._clock.now()).write(self._store, stored)
        for setting in dict.fromkeys(part.setting for part in missing):
            group = [part for part in missing if part.setting == setting]
            names = {name_of(part) for part in group}
            try:
                self._add(setting, group)
                applied.added += [part.name for part in group]
                settled = [replace(one, is_done=True) if one.name in names else one for one in record.added]
            except (Denied, Invalid) as refusal:
                applied.failures[setting] = refusal
                settled = [one for one in record.added if one.name not in names]
            record = replace(record, added=tuple(settled)).write(self._store, record)
        return applied

    def _add(self, setting: str, group: list[SettingPart]) -> None:
        def changed(current: JsonObject) -> JsonObject:
            return reduce(lambda made, part: part.added_to(made), group, current)

        # Skip validation unless we add a destination: the others would only get test messages.
        validate = any(part.member == "QueueConfigurations" for part in group)
        self._bucket.change(setting, changed, validate=validate)

    # Detach

    def plan_detach(self) -> tuple[AttachRecord, list[DetachStep]]:
        """What detach would do."""
        record = self.record()
        if record is None:
            hint = "check the URL; `worm attach` without --apply shows the settings of the bucket"
            raise NotFound(f"nothing is attached at {self.place.url}", key=layout.ATTACHED_KEY, hint=hint)
        self.settings = self._bucket.read_all()
        return record, [self._step(one) for one in record.added]

    def _step(self, one: AddedPart) -> DetachStep:
        part, current = one.part, self.settings[one.part.setting]
        if isinstance(current, Unreadable):
            return DetachStep(one, StepOutcome.STAYS, f"it cannot be read: you lack {current.action}")
        found = part.there(current)
        if found is None:
            return DetachStep(one, StepOutcome.GONE, "it was already removed")
        if not same({"": found}, {"": part.value}):
            return DetachStep(one, StepOutcome.STAYS, "it was changed since")
        if part.setting == "versioning":
            suspend = command(self.place, "versioning", {"Status": "Suspended"})
            reason = f"without it, the next overwrite of a document is lost forever. To suspend it anyway: {suspend}"
            return DetachStep(one, StepOutcome.STAYS, reason)
        keeper = "" if part.id_name else self._keeper(one)
        return DetachStep(one, StepOutcome.STAYS if keeper else StepOutcome.REMOVED, keeper or "attach added it")

    def _keeper(self, one: AddedPart) -> str:
        """Why a switch for the whole bucket must stay on; empty if nothing is known to need it."""
        lifecycle = self.settings["lifecycle"]
        if not one.is_done:
            return "attach was interrupted, so it may belong to somebody else"
        if isinstance(lifecycle, Unreadable):
            return f"cannot check whether another prefix is attached: you lack {lifecycle.action}"
        others = sorted(attached_prefixes(lifecycle) - {self.place.prefix})
        return f"s3://{self.place.bucket}/{others[0]} is attached and needs it" if others else ""

    def detach(self, record: AttachRecord, steps: Iterable[DetachStep]) -> dict[str, WormError]:
        """Remove the parts of the steps; returns errors by setting. The record is removed last, if nothing was
        refused."""
        going = [one.added for one in steps if one.outcome is StepOutcome.REMOVED]
        failures: dict[str, WormError] = {}
        for setting in dict.fromkeys(one.part.setting for one in going):
            group = [one.part for one in going if one.part.setting == setting]
            try:
                self._remove(setting, group)
            except (Denied, Invalid) as refusal:
                failures[setting] = refusal
        left = tuple(one for one in record.added if one.part.setting in failures)
        if left:
            replace(record, added=left).write(self._store, record)
        elif isinstance(self._store.delete_if_match(layout.ATTACHED_KEY, record.etag or ""), Lost):
            raise Conflict("an attach was running", key=layout.ATTACHED_KEY, hint=AGAIN)
        return failures

    def _remove(self, setting: str, group: list[SettingPart]) -> None:
        def changed(current: JsonObject) -> JsonObject:
            return reduce(lambda made, part: part.removed_from(made), group, current)

        self._bucket.change(setting, changed, validate=False)
