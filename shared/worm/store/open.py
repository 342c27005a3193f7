"""From a url to a store: `s3://bucket[/prefix]`, a path or `file://…`, `memory://name`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from worm.clock import Clock, Ids
from worm.errors import Invalid
from worm.store.base import Store
from worm.store.memory import MemoryStore


def open_store(
    url: str | Path,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    role: str | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Store:
    """The store of the url. The engines are imported only for the url that needs them. Sends no request."""
    given: object = url
    if not isinstance(given, str | Path) or not str(given):
        hint = "s3://bucket[/prefix], a path such as ./data, or memory://name"
        raise Invalid(f"{url!r} names no place", hint=hint)
    text = str(url)
    scheme, _, rest = text.partition("://")
    if not rest and "://" not in text:
        return _open_file(Path(text), clock, ids)
    if scheme == "file":
        return _open_file(_file_path(text), clock, ids)
    if scheme == "memory":
        return MemoryStore.named(rest)
    if scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise Invalid(f"{text!r} names no bucket", hint="write s3://bucket or s3://bucket/prefix")
        return _open_s3(bucket, prefix, endpoint_url, region, role, clock, ids)
    raise Invalid(f"{text!r} is not a url this library can open", hint="s3://bucket[/prefix], a path, or memory://name")


def _open_file(path: Path, clock: Clock | None, ids: Ids | None) -> Store:
    from worm.store.file import FileStore

    if str(path) in ("", "."):
        path = Path.cwd()
    return FileStore(path.expanduser(), clock=clock, ids=ids)


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise Invalid(f"{url!r} names another machine", hint="write file:///absolute/path")
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
