"""From a url to a store: `s3://bucket[/prefix]`, a path or `file://…`, `memory://name`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from worm.clock import Clock, Ids
from worm.errors import Invalid, shown
from worm.store.base import Durability, Store, check_prefix
from worm.store.memory import MemoryStore

PLACES = "s3://bucket[/prefix], a path such as ./data, file:///path, or memory://name"
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>(//)?)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_store(
    url: str | Path,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    role: str | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    durability: Durability | None = None,
) -> Store:
    """The store of the url. The engines are imported only for the url that needs them. Sends no request. `durability`
    is for a directory: see `FileStore`; without it, `WORM_DURABILITY` counts."""
    _check_parts(clock, ids)
    text, scheme, rest = split_url(url)
    if scheme == "":
        return _open_file(_directory(text), clock, ids, durability)
    if scheme == "file":
        return _open_file(_file_path(text), clock, ids, durability)
    if durability is not None:
        raise Invalid(
            f"durability={shown(durability)} is for a directory, and {shown(text)} is none", hint="leave it out"
        )
    if scheme == "memory":
        return MemoryStore.named(rest)
    if scheme == "s3":
        bucket, prefix = bucket_and_prefix(text, rest)
        return _open_s3(bucket, prefix, endpoint_url, region, role, clock, ids)
    raise Invalid(f"{shown(text)} is not a url this library can open", hint=_other_place(scheme, rest))


def _check_parts(clock: object, ids: object) -> None:
    if clock is not None and not all(callable(getattr(clock, name, None)) for name in ("now", "monotonic", "sleep")):
        raise Invalid(f"takes a clock, not {shown(clock)}", path="clock", hint="leave it out")
    if ids is not None and not isinstance(ids, Ids):
        raise Invalid(f"takes a source of ids, not {shown(ids)}", path="ids", hint="leave it out")


def split_url(url: str | Path) -> tuple[str, str, str]:
    """The text of the url, its scheme in lower case (empty for a path) and what comes after `://`.

    `Invalid` for what is almost a url: a typing error must not become a directory, in which a bucket's documents would
    be stored.
    """
    given: object = url
    text = str(given) if isinstance(given, str | Path) else ""
    if not text.strip():
        raise Invalid(f"{shown(url)} names no place", hint=PLACES)
    if text != text.strip() or not text.isprintable():
        raise Invalid(f"{shown(text)} has spaces around it, or characters that cannot be printed", hint=PLACES)
    found = _SCHEME.match(text)
    if found is None:
        return text, "", text
    scheme, rest = found["scheme"].lower(), text[found.end() :]
    if found["slashes"] != "//":
        if len(scheme) == 1:
            raise Invalid(
                f"{shown(text)} is a path of Windows", hint="this library runs on Linux and macOS; write a/path"
            )
        name = rest.strip("/")
        hint = f"write {scheme}://{name}" if scheme in ("s3", "memory") else f"write {scheme}:///absolute/path"
        if scheme not in ("s3", "memory", "file", "sqlite"):
            hint = f"{PLACES}; a directory of this name is ./{text}"
        raise Invalid(f"{shown(text)} is neither a url nor a path", hint=hint)
    return text, scheme, rest


def irregular_files(store: Store) -> list[str]:
    """Of a directory: what lies among the documents and is not a regular file."""
    from worm.store.file import FileStore

    return store.irregular() if isinstance(store, FileStore) else []


def in_the_way(store: Store, key: str) -> str | None:
    """Of a directory: what lies in the place of a document and is not a regular file, with what to do about it."""
    from worm.store.file import FileStore

    return store.in_the_way(key) if isinstance(store, FileStore) else None


def _other_place(scheme: str, rest: str) -> str:
    host, _, path = rest.partition("/")
    if scheme in ("s3a", "s3n"):
        return f"write s3://{rest}"
    if scheme in ("http", "https") and host.endswith(".amazonaws.com"):
        by_host = host.partition(".s3")[0] if ".s3" in host else ""
        return f"write s3://{f'{by_host}/{path}' if by_host else path}".rstrip("/")
    if scheme in ("http", "https"):
        return "write s3://bucket[/prefix], and give the server as endpoint_url (--endpoint-url, AWS_ENDPOINT_URL)"
    return PLACES


def bucket_and_prefix(text: str, rest: str) -> tuple[str, str]:
    """Of an S3 url, whose text after `s3://` is `rest`."""
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise Invalid(f"{shown(text)} names no bucket", hint="write s3://bucket or s3://bucket/prefix")
    if "?" in text or "#" in text:
        raise Invalid(
            f"{shown(text)} has a '?' or a '#'", hint="a url names a bucket and a prefix only; settings are arguments"
        )
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        hint = "3 to 63 lower-case letters, digits, dots and dashes, beginning and ending with a letter or a digit"
        raise Invalid(f"{shown(bucket)} cannot be the name of a bucket", hint=hint)
    if prefix:
        check_prefix(prefix)
    return bucket, prefix


def _directory(text: str) -> Path:
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)
    except RuntimeError as error:
        raise Invalid(f"{shown(text)}: {error}", hint=f"a directory of this name is ./{text}") from error


def _open_file(path: Path, clock: Clock | None, ids: Ids | None, durability: Durability | None) -> Store:
    from worm.store.file import FileStore

    for one in (path, *path.parents):
        if one.exists():
            if not one.is_dir():
                raise Invalid(f"{one} is a file, not a directory", hint="name a directory; it is made if needed")
            break
    chosen = cast(Durability, durability or os.environ.get("WORM_DURABILITY") or "power")
    return FileStore(path, clock=clock, ids=ids, durability=chosen)


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"{shown(url)} names another machine", hint="write file:///absolute/path")
    if not parts.path or "?" in url or "#" in url:
        raise Invalid(
            f"{shown(url)} names no path", hint="write file:///absolute/path, with %3F for '?' and %23 for '#'"
        )
    return Path(unquote(parts.path))


def _open_s3(
    bucket: str,
    prefix: str,
    endpoint_url: str | None,
    region: str | None,
    role: str | None,
    clock: Clock | None,
    ids: Ids | None,
) -> Store:
    from worm.store.s3 import S3Store

    return S3Store(bucket, prefix, endpoint_url=endpoint_url, region=region, role=role, clock=clock, ids=ids)
