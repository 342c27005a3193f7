"""The options of the data source, parsed and checked. An unknown name is an error: a misspelled `filter` must not read
everything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args

from worm.clock import iso_seconds
from worm.errors import Invalid
from worm.formats import JsonValue, loads
from worm.query import Filter
from worm.upkeep import Maintenance

Kind = Literal["documents", "history", "trash", "changes"]
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
From = Literal["auto", "table", "documents"]

TARGET = ("url", "path", "endpoint_url", "model")
CHANGES = (*TARGET, "changes", "filter", "mode")
READING = (*CHANGES, "at", "history", "trash", "since", "until", "partitions", "pushdown", "from")
STREAM_ONLY = ("startingOffset", "maxChangesPerTrigger")
STREAMING = (*CHANGES, *STREAM_ONLY)
WRITING = (*TARGET, "actor", "maintenance", "replace", "batch")
SINKING = (*WRITING, "existing", "checkpointLocation", "queryName")
PARTITIONS = 16
BATCH = 500
EARLIEST, LATEST = "earliest", "latest"

T = TypeVar("T", bound=str)
_MODES: tuple[Mode, ...] = get_args(Mode)
_FROM: tuple[From, ...] = get_args(From)
_EXISTING = ("update", "refuse")
_SEQ = re.compile(r"[1-9][0-9]{0,18}")
_COUNT = re.compile(r"[0-9]{1,18}")
_FILTER_HINT = 'for example {"status": "active"}'


@dataclass(frozen=True, slots=True)
class At:
    """A moment of history: a seq, or a time in whole seconds as entries have it."""

    seq: int | None = None
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Which collection to use, and where it is."""

    url: str
    model: str
    endpoint_url: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Target:
        url, model = options.get("url") or options.get("path"), options.get("model")
        if not url:
            raise Invalid("the option url is missing", hint='add .option("url", "s3://bucket/prefix")')
        if not model:
            raise Invalid("the option model is missing", hint='add .option("model", "Customer")')
        return cls(reachable(url), model, options.get("endpoint_url"))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. `filter` is canonical JSON."""

    target: Target
    kind: Kind = "documents"
    at: At | None = None
    filter: bytes | None = None
    partitions: int = PARTITIONS
    mode: Mode = "PERMISSIVE"
    pushdown: bool = False
    read_from: From = "auto"
    since: str = ""
    until: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        given = {name.lower() for name in options}
        for name in STREAM_ONLY:
            if name.lower() in given:
                raise Invalid("only a stream has it", path=name, hint="use readStream, or since and until")
        _refuse_unknown(options, READING)
        if _flag(options, "changes"):
            return cls._of_changes(options)
        for name in ("since", "until"):
            if options.get(name):
                raise Invalid("only changes have it", path=name, hint='add .option("changes", "true"), or use at')
        target, at = Target.of(options), options.get("at")
        is_history, is_trash = _flag(options, "history"), _flag(options, "trash")
        if is_trash and (is_history or at):
            raise Invalid("trash cannot be combined with history or at", hint="the history also has deleted documents")
        read_from = _one_of(_FROM, "from", (options.get("from") or _FROM[0]).lower())
        if read_from == "table" and (is_history or is_trash or at):
            raise Invalid("a table has no history and no trash", path="from", hint="leave the option from out")
        return cls(
            target,
            "history" if is_history else "trash" if is_trash else "documents",
            None if not at else _at(at),
            _filter(options.get("filter")),
            _count(options, "partitions", PARTITIONS),
            _one_of(_MODES, "mode", (options.get("mode") or _MODES[0]).upper()),
            _flag(options, "pushdown"),
            read_from,
        )

    @classmethod
    def _of_changes(cls, options: Mapping[str, str]) -> ReadOptions:
        for name in ("at", "history", "trash", "from", "partitions", "pushdown"):
            if options.get(name, "false").lower() != "false":
                raise Invalid("changes cannot be combined with it", path=name, hint="use since and until")
        since, until = options.get("since"), options.get("until")
        return cls(
            Target.of(options),
            "changes",
            filter=_filter(options.get("filter")),
            mode=_one_of(_MODES, "mode", (options.get("mode") or _MODES[0]).upper()),
            since="" if not since else _second(since, "since"),
            until=None if not until else _second(until, "until"),
        )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream reads. `starting` is `EARLIEST`, `LATEST` or a time. `most`: changes in one batch."""

    read: ReadOptions
    starting: str = EARLIEST
    most: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        given = {name.lower() for name in options}
        for name in ("since", "until"):
            if name in given:
                raise Invalid("only a batch read has it", path=name, hint="use startingOffset")
        _refuse_unknown(options, STREAMING)
        if not _flag(options, "changes"):
            hint = 'add .option("changes", "true"): Spark asks for the columns before it says that this is a stream'
            raise Invalid("a stream has the changes of a model", path="changes", hint=hint)
        starting, most = options.get("startingOffset") or EARLIEST, options.get("maxChangesPerTrigger")
        if starting.lower() in (EARLIEST, LATEST):
            starting = starting.lower()
        else:
            starting = _second(starting, "startingOffset", f"{EARLIEST}, {LATEST}, or ")
        shared = {name: value for name in CHANGES if (value := options.get(name)) is not None}
        limit = None if most is None else _count(options, "maxChangesPerTrigger", 1, 1_000_000_000)
        return cls(ReadOptions.of(shared), starting, limit)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write. Without the option, `maintenance` comes from the driver's `WORM_MAINTENANCE`, or is inline.
    `batch` is how many documents are saved together."""

    target: Target
    actor: str | None = None
    maintenance: Maintenance = "inline"
    replace: bool = False
    batch: int = BATCH

    @classmethod
    def of(cls, options: Mapping[str, str], known: tuple[str, ...] = WRITING) -> WriteOptions:
        _refuse_unknown(options, known)
        maintenance = options.get("maintenance") or os.environ.get("WORM_MAINTENANCE") or "inline"
        if maintenance not in ("inline", "events"):
            raise Invalid(f"must be inline or events, not {maintenance!r}", path="maintenance")
        return cls(
            Target.of(options),
            options.get("actor"),
            cast(Maintenance, maintenance),
            _flag(options, "replace"),
            _count(options, "batch", BATCH),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How a stream is written. `overwrite`: documents that exist are changed, not refused. Spark adds options of its
    own."""

    write: WriteOptions
    overwrite: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        existing = _one_of(_EXISTING, "existing", (options.get("existing") or _EXISTING[0]).lower())
        return cls(WriteOptions.of(options, SINKING), existing == "update")


def reachable(url: str) -> str:
    """The URL as another process understands it: a relative path becomes absolute, `memory://` is refused."""
    scheme, separator, _ = url.partition("://")
    if scheme == "memory" and separator:
        raise Invalid(
            f"{url} is the memory of one process, but Spark runs in several", hint="use s3://bucket or a directory"
        )
    is_url = bool(separator) or url.startswith(("file:", "s3:"))  # half a URL is refused when it is opened
    return url if is_url else str(Path(url).expanduser().resolve())


def _refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    lowered = {one.lower() for one in known}
    unknown = sorted(name for name in options if name.lower() not in lowered)
    if unknown:
        # Spark asks for columns before it says that this is a stream, and passes names in small letters.
        every = {one.lower(): one for one in (*known, *(STREAMING if known == READING else ()))}
        close = get_close_matches(unknown[0].lower(), every, 1)
        hint = f"did you mean {every[close[0]]}?" if close else f"the options are: {', '.join(every.values())}"
        raise Invalid(f"unknown option {unknown[0]!r}", hint=hint)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = (options.get(name) or "false").lower()
    if text not in ("true", "false"):
        raise Invalid(f"must be true or false, not {text!r}", path=name)
    return text == "true"


def _at(text: str) -> At:
    if _SEQ.fullmatch(text):
        return At(seq=int(text))
    try:
        return At(time=iso_seconds(_moment(text)))
    except (ValueError, OverflowError) as mistake:
        hint = "use a seq such as 3, or a time such as 2026-02-24T12:00:00Z"
        raise Invalid(f"{text!r} is neither a seq nor a time", path="at", hint=hint) from mistake


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _second(text: str, name: str, others: str = "") -> str:
    """The first whole second that is not before the time: entries have whole seconds."""
    try:
        return iso_seconds(_moment(text) + timedelta(microseconds=999_999))
    except (ValueError, OverflowError) as mistake:
        hint = f"use {others}a time such as 2026-02-24T12:00:00Z"
        raise Invalid(f"{text!r} is not a time", path=name, hint=hint) from mistake


def _filter(text: str | None) -> bytes | None:
    if not text:
        return None
    try:
        value: JsonValue = loads(text.encode("utf-8", "surrogatepass"))
    except Invalid as mistake:
        raise Invalid(f"must be JSON: {mistake.message}", path="filter", hint=_FILTER_HINT) from mistake
    if not isinstance(value, dict):
        raise Invalid("a filter must be a JSON object", path="filter", hint=_FILTER_HINT)
    return Filter.compile(value).source


def _count(options: Mapping[str, str], name: str, default: int, most: int = 100_000) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= most:
        raise Invalid(f"must be a whole number from 1 to {most}, not {text!r}", path=name)
    return int(text)


def _one_of(known: Sequence[T], name: str, chosen: str) -> T:
    found = next((one for one in known if one == chosen), None)
    if found is None:
        raise Invalid(f"must be one of {', '.join(known)}, not {chosen!r}", path=name)
    return found
