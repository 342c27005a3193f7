"""Urls to stores, and what is particular to memory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import worm
from worm.clock import VirtualClock
from worm.errors import Invalid, Unavailable
from worm.log.journal.store import LogStore
from worm.spaces.opening import open_space
from worm.store.base import (
    NULL_VERSION,
    AttemptOutcome,
    IfAbsent,
    Version,
    check_metadata,
    content_etag,
    quote_value,
    unquote_value,
)
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.open import open_store
from worm.store.s3 import S3Store


def test_a_path_a_file_url_and_a_relative_path_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (tmp_path / "da ta", f"{tmp_path}/da ta", (tmp_path / "da ta").as_uri(), "./da ta"):
        store = open_store(url)
        assert isinstance(store, FileStore)
        assert store.root == tmp_path / "da ta"


def test_an_s3_url_names_the_bucket_and_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    store = open_store("s3://bucket/some/prefix/", endpoint_url="http://127.0.0.1:1")
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix, store.url) == ("bucket", "some/prefix/", "s3://bucket/some/prefix")
    assert open_store("s3://bucket").url == "s3://bucket"


ENDPOINTS = (
    *(
        "not a url",
        "http://",
        "https://",
        "http:///x",
        "ftp://x",
        "file:///tmp",
        "s3://x",
        "localhost:9000",
        "x",
        "//x",
    ),
    *(
        "http://a b",
        "http://x\ny",
        " http://x",
        "http://x ",
        "http://ü",
        "http://x%zz",
        "http://[::1",
        "http://x:99999",
    ),
    *("http://x:abc", "http://x?y=1", "http://x#f", "http://..", "http://-", "http://a..b", "http://my_minio:9000"),
    f"http://{'a' * 300}",
)
REGIONS = ("us east", "us\neast", "\n", " ", "us/east", "us_east", "ü", "us\x01", "-us", "12", "x" * 64)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", None])
def test_an_endpoint_that_is_no_url_is_refused_with_what_to_set(
    endpoint: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore panicked at the first request, with a BaseException that no program handles."""
    if name is not None:
        monkeypatch.setenv(name, endpoint)
    with pytest.raises(Invalid, match="is not a server's URL") as caught:
        open_store("s3://bucket", endpoint_url=None if name is not None else endpoint)
    assert "AWS_ENDPOINT_URL" in str(caught.value)
    with pytest.raises(Invalid, match="is not a server's URL"):
        worm.connect("s3://bucket", endpoint_url=endpoint)


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_region_that_can_be_none_is_refused_with_what_to_set(
    region: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(one, raising=False)
    with pytest.raises(Invalid, match="set AWS_REGION"):
        open_store("s3://bucket", region=region)
    monkeypatch.setenv(name, region)
    with pytest.raises(Invalid, match="is not a valid region name"):
        worm.connect("s3://bucket")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
@pytest.mark.parametrize("value", ["key\n", "k\x01y", "schlüssel"])
def test_a_credential_that_no_request_can_carry_is_refused_and_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"set {name} again") as caught:
        open_store("s3://bucket")
    assert value not in str(caught.value)


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("wrong", [5, b"http://x", ["http://x"], object()])
def test_an_endpoint_or_region_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid, match="is not a server's URL"):
        open_store("s3://bucket", endpoint_url=wrong)
    with pytest.raises(Invalid, match="is not a valid region name"):
        open_store("s3://bucket", region=wrong)


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    "endpoint",
    ["http://localhost:9000", "HTTPS://s3.eu-central-1.amazonaws.com", "http://[::1]:9000/path", "http://10.0.0.1."],
)
def test_an_endpoint_that_both_clients_take_is_taken(endpoint: str) -> None:
    store = open_store("s3://bucket", endpoint_url=endpoint, region="eu-central-1")
    assert store.identity == f"s3://bucket at {endpoint}"


@pytest.mark.usefixtures("credentials")
def test_a_setting_that_the_client_refuses_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORM_ROLE", "two\nlines")
    with pytest.raises(Invalid, match="the S3 client rejected its settings"):
        open_store("s3://bucket")


class PanicException(BaseException):
    """As obstore's: it is no `Exception`, and cannot be imported."""


@pytest.mark.usefixtures("credentials")
def test_a_panic_of_the_client_is_a_request_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody says whether it was sent: a write is in doubt, and must not be taken for one that did not land."""

    def panic(*_: object, **__: object) -> None:
        raise PanicException("called `Result::unwrap()` on an `Err` value")

    monkeypatch.setattr("obstore.get", panic)
    monkeypatch.setattr("obstore.put", panic)
    store = S3Store("bucket", endpoint_url="http://127.0.0.1:1", clock=VirtualClock())
    assert store.attempt_put("a", b"1", IfAbsent(), {}).outcome is AttemptOutcome.UNKNOWN
    with pytest.raises(Unavailable, match="the client failed"):
        store.get("a")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("obstore.get", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.get("a")


def test_a_memory_url_is_one_store_per_name() -> None:
    first, second, other = (open_store(f"memory://{name}") for name in ("one", "one", "two"))
    first.put("a", b"1")
    assert second.get("a") == first.get("a")
    assert (other.get("a"), first.url) == (None, "memory://one")


BROKEN = {
    "s3://": "does not name a bucket",
    "s3:///key": "does not name a bucket",
    "s3:/bucket": "write s3://bucket",
    "s3:bucket/x": "write s3://bucket/x",
    "S3:bucket": "write s3://bucket",
    "s3a://bucket/x": "write s3://bucket/x",
    "s3://misc?x=1": "contains '\\?'",
    "s3://misc/a#b": "or '#'",
    "s3://Bucket": "is not a valid bucket name",
    "s3://my_bucket": "is not a valid bucket name",
    "s3://ab": "is not a valid bucket name",
    "s3://a..b": "is not a valid bucket name",
    "s3://user@bucket": "is not a valid bucket name",
    "s3://bucket:9000/x": "is not a valid bucket name",
    "s3://bucket//x": "empty path segment",
    "s3://bucket/a//b": "empty path segment",
    "s3://bucket/a/../b": "'\\.\\.'",
    "https://bucket.s3.eu-west-1.amazonaws.com/x": "write s3://bucket/x",
    "https://s3.eu-west-1.amazonaws.com/bucket/x": "write s3://bucket/x",
    "http://example.com": "endpoint_url",
    "ftp://x": "not a URL that worm can open",
    "sqlite:///x": "not a URL that worm can open",
    "arn:aws:s3:::bucket": "neither a URL nor a path",
    "file:x": "write file:///absolute/path",
    "file:/x": "write file:///absolute/path",
    "file://": "has no path",
    "file://elsewhere/x": "another machine",
    "file:///x?y": "%3F",
    "memory:x": "write memory://x",
    "C:\\data": "Windows path",
    "c:/data": "Windows path",
    " ./data": "starts or ends with a space",
    "./data\n": "starts or ends with a space",
    "a\0b": "unprintable",
    "": "is not a URL or a path",
    "  ": "is not a URL or a path",
    "~nobody-has-this-name/x": "for a directory of this name, write ./~nobody",
}


@pytest.mark.parametrize("url", BROKEN)
def test_what_is_almost_a_url_is_refused_with_a_hint(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for a path, it would become a local directory, and documents would be acknowledged there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match=BROKEN[url]):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


def test_an_s3_url_that_became_a_path_object_is_refused() -> None:
    """`Path` makes one slash of two."""
    with pytest.raises(Invalid, match="write s3://bucket/x"):
        open_store(Path("s3://bucket/x"))


def test_a_file_is_not_taken_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("{}")
    for path in (tmp_path / "data.json", tmp_path / "data.json" / "inner"):
        with pytest.raises(Invalid, match="is a file, not a directory"):
            open_store(path)


def test_names_with_colons_and_tildes_are_reached_by_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./s3:bucket", "./~nobody-has-this-name", "./C:", "a/b:c"):
        assert open_store(name).url == (tmp_path / name).as_uri()


def test_a_scheme_may_be_written_in_capitals(tmp_path: Path) -> None:
    assert open_store(f"FILE://{tmp_path}/x").url == (tmp_path / "x").as_uri()


async def _aopen(url: str) -> object:
    return await worm.aconnect(url, schema={})


def test_every_opener_refuses_what_is_almost_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    openers: list[Callable[[str], object]] = [
        lambda url: worm.connect(url, schema={}),
        lambda url: asyncio.run(_aopen(url)),
        lambda url: open_space(url, "main"),
        lambda url: LogStore.open(url),
    ]
    for opened in openers:
        for url in ("s3:/bucket", "file:x", "sqlite:x", "s3:bucket"):
            with pytest.raises(Invalid, match="neither a URL nor a path"):
                opened(url)
    with pytest.raises(Invalid, match="this store is a directory"):
        LogStore.open("s3://bucket")
    assert list(tmp_path.iterdir()) == []


def test_memory_takes_its_times_from_the_clock_in_whole_seconds() -> None:
    clock = VirtualClock(datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC))
    store = MemoryStore(versioned=True, clock=clock)
    store.put("a", b"1")
    clock.advance(90)
    store.delete("a")
    assert list(store.versions("a")) == [
        Version("a", "v00000002", "", 0, datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC), True, is_delete_marker=True),
        Version("a", "v00000001", content_etag(b"1"), 1, datetime(2026, 1, 1, tzinfo=UTC), False),
    ]


def test_memory_that_becomes_versioned_keeps_its_old_version_readable() -> None:
    store = MemoryStore()
    store.put("a", b"old")
    store.versioned = True
    store.put("a", b"new")
    assert [row.version_id for row in store.versions("a")] == ["v00000001", NULL_VERSION]
    found = store.get("a", version_id=NULL_VERSION)
    assert found is not None
    assert found.body == b"old"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100))
def test_any_text_survives_as_metadata(text: str) -> None:
    quoted = quote_value(text)
    assert unquote_value(quoted) == text
    assert check_metadata({"worm-actor": quoted}, "key") == {"worm-actor": quoted}


def test_durability_is_for_directories_and_is_said_or_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**options: Any) -> bool:
        store = open_store(tmp_path / "data", **options)
        store.put("a", b"1")
        found = (tmp_path / "data/.worm.store/wal").exists()
        shutil.rmtree(tmp_path / "data")
        return found

    assert [made(), made(durability="power"), made(durability="process")] == [True, True, False]
    monkeypatch.setenv("WORM_DURABILITY", "process")
    assert [made(), made(durability="power")] == [False, True]
    assert isinstance(open_store("memory://x"), MemoryStore)
    for url in ("memory://x", "s3://bucket/prefix"):
        with pytest.raises(Invalid, match="only applies to a directory"):
            open_store(url, durability="process")
    monkeypatch.setenv("WORM_DURABILITY", "maybe")
    with pytest.raises(Invalid, match="'power' or 'process', not 'maybe'"):
        open_store(tmp_path / "data")
    with pytest.raises(Invalid, match="only applies to a directory"):
        worm.connect("memory://x", schema={"models": {}}, durability="power")


def test_a_working_directory_that_is_gone_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(Invalid, match="the working directory no longer exists"):
        open_store("./data")
