"""The options of the data source, parsed and checked. An unknown name is an error: a misspelled `filter` must not read
everything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args

from worm.clock import iso_seconds
from worm.codec.strict_json import JsonValue, loads
from worm.errors import Invalid
from worm.query.filters import Filter
from worm.session import Maintenance

Kind = Literal["documents", "history", "trash"]
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
From = Literal["auto", "table", "documents"]

TARGET = ("url", "path", "endpoint_url", "model")
READING = (*TARGET, "filter", "at", "history", "trash", "partitions", "mode", "pushdown", "from")
WRITING = (*TARGET, "actor", "maintenance", "replace", "batch")
PARTITIONS = 16
BATCH = 500

T = TypeVar("T", bound=str)
_MODES: tuple[Mode, ...] = get_args(Mode)
_FROM: tuple[From, ...] = get_args(From)
_SEQ = re.compile(r"[1-9][0-9]{0,18}")


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

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        _refuse_unknown(options, READING)
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
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        _refuse_unknown(options, WRITING)
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


def reachable(url: str) -> str:
    """The URL as another process understands it: a relative path becomes absolute, `memory://` is refused."""
    scheme, separator, _ = url.partition("://")
    if scheme == "memory" and separator:
        raise Invalid(
            f"{url} is the memory of one process, but Spark runs in several", hint="use s3://bucket or a directory"
        )
    return url if separator else str(Path(url).expanduser().resolve())


def _refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        raise Invalid(f"unknown option {unknown[0]!r}", hint=f"the options are: {', '.join(known)}")


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = (options.get(name) or "false").lower()
    if text not in ("true", "false"):
        raise Invalid(f"must be true or false, not {text!r}", path=name)
    return text == "true"


def _at(text: str) -> At:
    if _SEQ.fullmatch(text):
        return At(seq=int(text))
    try:
        moment = datetime.fromisoformat(text)
        return At(time=iso_seconds(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)))
    except (ValueError, OverflowError) as mistake:
        hint = "use a seq such as 3, or a time such as 2026-02-24T12:00:00Z"
        raise Invalid(f"{text!r} is neither a seq nor a time", path="at", hint=hint) from mistake


def _filter(text: str | None) -> bytes | None:
    if not text:
        return None
    value: JsonValue = loads(text.encode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise Invalid("a filter must be a JSON object", path="filter", hint='for example {"status": "active"}')
    return Filter.compile(value).source


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise Invalid(f"must be a whole number from 1 to 100000, not {text!r}", path=name)
    return int(text)


def _one_of(known: Sequence[T], name: str, chosen: str) -> T:
    found = next((one for one in known if one == chosen), None)
    if found is None:
        raise Invalid(f"must be one of {', '.join(known)}, not {chosen!r}", path=name)
    return found
