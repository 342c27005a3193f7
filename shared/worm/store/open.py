"""Opens the store for a URL: `s3://bucket[/prefix]`, a path or `file://…`, `memory://name`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from worm.clock import Clock, Ids
from worm.errors import Invalid, show
from worm.store.base import Durability, Store, check_prefix
from worm.store.memory import MemoryStore

if TYPE_CHECKING:
    from worm.store.file import FileStore

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
    patient: bool = False,
) -> Store:
    """The store for the URL. Only the client that the URL needs is imported. Sends no request. `durability` is only for
    a directory: see `FileStore`. The default is `WORM_DURABILITY`. `patient` is only for S3: a request that S3
    throttles is tried again as long as S3 serves others of this process; without it, six times.

    Examples:
        >>> store = worm.open_store("memory://files")
        >>> store.url
        'memory://files'
    """
    _check_parts(clock, ids)
    parts = split_url(url)
    text, scheme, rest = parts
    if scheme == "":
        return _open_file(_directory(text), clock, ids, durability)
    if scheme == "file":
        return _open_file(_file_path(text), clock, ids, durability)
    if durability is not None:
        what = f"durability={show(durability)} only applies to a directory, and {show(text)} is not one"
        raise Invalid(what, hint="leave it out")
    if scheme == "memory":
        return MemoryStore.named(rest)
    if scheme == "s3":
        from worm.store.s3 import S3Store

        bucket, prefix = parts.bucket_and_prefix()
        return S3Store(
            bucket,
            prefix,
            endpoint_url=endpoint_url,
            region=region,
            role=role,
            clock=clock,
            ids=ids,
            patient=patient,
        )
    raise Invalid(f"{show(text)} is not a URL that worm can open", hint=_other_place(scheme, rest))


def _check_parts(clock: object, ids: object) -> None:
    if clock is not None and not all(callable(getattr(clock, name, None)) for name in ("now", "monotonic", "sleep")):
        raise Invalid(f"takes a clock, not {show(clock)}", path="clock", hint="leave it out")
    if ids is not None and not isinstance(ids, Ids):
        raise Invalid(f"takes a source of ids, not {show(ids)}", path="ids", hint="leave it out")


class UrlParts(NamedTuple):
    """The text of a URL, its scheme in lowercase (empty for a path) and the part after `://`."""

    text: str
    scheme: str
    rest: str

    def bucket_and_prefix(self) -> tuple[str, str]:
        """The bucket and the prefix of an S3 URL."""
        bucket, _, prefix = self.rest.partition("/")
        if not bucket:
            raise Invalid(f"{show(self.text)} does not name a bucket", hint="write s3://bucket or s3://bucket/prefix")
        if "?" in self.text or "#" in self.text:
            raise Invalid(
                f"{show(self.text)} contains '?' or '#'",
                hint="a URL holds only a bucket and a prefix; pass settings as arguments",
            )
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            hint = "use 3 to 63 lowercase letters, digits, dots and dashes; start and end with a letter or a digit"
            raise Invalid(f"{show(bucket)} is not a valid bucket name", hint=hint)
        if prefix:
            check_prefix(prefix)
        return bucket, prefix


def split_url(url: str | Path) -> UrlParts:
    """The parts of the URL.

    Raises `Invalid` for text that is almost a URL: a typo must not create a directory that then stores the documents
    meant for a bucket.
    """
    given: object = url
    text = str(given) if isinstance(given, str | Path) else ""
    if not text.strip():
        raise Invalid(f"{show(url)} is not a URL or a path", hint=f"use {PLACES}")
    if text != text.strip() or not text.isprintable():
        raise Invalid(
            f"{show(text)} starts or ends with a space, or contains unprintable characters", hint=f"use {PLACES}"
        )
    found = _SCHEME.match(text)
    if found is None:
        return UrlParts(text, "", text)
    scheme, rest = found["scheme"].lower(), text[found.end() :]
    if found["slashes"] != "//":
        if len(scheme) == 1:
            raise Invalid(f"{show(text)} is a Windows path", hint="worm runs on Linux and macOS; write a/path")
        name = rest.strip("/")
        hint = f"write {scheme}://{name}" if scheme in ("s3", "memory") else f"write {scheme}:///absolute/path"
        if scheme not in ("s3", "memory", "file", "sqlite"):
            hint = f"use {PLACES}; for a directory of this name, write ./{text}"
        raise Invalid(f"{show(text)} is neither a URL nor a path", hint=hint)
    return UrlParts(text, scheme, rest)


def irregular_files(store: Store) -> list[str]:
    """For a directory: paths among the documents that are not regular files."""
    found = _as_directory(store)
    return [] if found is None else found.irregular()


def in_the_way(store: Store, key: str) -> str | None:
    """For a directory: what occupies a document's path but is not a regular file, and what to do about it."""
    found = _as_directory(store)
    return None if found is None else found.in_the_way(key)


def _as_directory(store: Store) -> FileStore | None:
    """The store if it is a directory. Where no directory was opened, its module is not imported: Windows lacks it."""
    if "worm.store.file" not in sys.modules:
        return None
    from worm.store.file import FileStore

    return store if isinstance(store, FileStore) else None


def _other_place(scheme: str, rest: str) -> str:
    host, _, path = rest.partition("/")
    if scheme in ("s3a", "s3n"):
        return f"write s3://{rest}"
    if scheme in ("http", "https") and host.endswith(".amazonaws.com"):
        by_host = host.partition(".s3")[0] if ".s3" in host else ""
        return f"write s3://{f'{by_host}/{path}' if by_host else path}".rstrip("/")
    if scheme in ("http", "https"):
        return "write s3://bucket[/prefix], and pass the server as endpoint_url (--endpoint-url, AWS_ENDPOINT_URL)"
    return f"use {PLACES}"


def _directory(text: str) -> Path:
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)
    except RuntimeError as error:
        raise Invalid(f"{show(text)}: {error}", hint=f"for a directory of this name, write ./{text}") from error


def _open_file(path: Path, clock: Clock | None, ids: Ids | None, durability: Durability | None) -> Store:
    from worm.store.file import FileStore

    for one in (path, *path.parents):
        if one.exists():
            if not one.is_dir():
                raise Invalid(f"{one} is a file, not a directory", hint="name a directory; worm creates it if needed")
            break
    chosen = cast(Durability, durability or os.environ.get("WORM_DURABILITY") or "power")
    try:
        return FileStore(path, clock=clock, ids=ids, durability=chosen)
    except FileNotFoundError as error:  # only the working directory is asked for
        raise Invalid("the working directory no longer exists", hint="change to another directory") from error


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"{show(url)} names another machine", hint="write file:///absolute/path")
    if not parts.path or "?" in url or "#" in url:
        raise Invalid(f"{show(url)} has no path", hint="write file:///absolute/path, with %3F for '?' and %23 for '#'")
    return Path(unquote(parts.path))
