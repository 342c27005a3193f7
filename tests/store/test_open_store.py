"""Urls to stores, and what is particular to memory."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.clock import VirtualClock
from worm.errors import Invalid
from worm.store.base import NULL_VERSION, Version, check_metadata, content_etag, quote_value, unquote_value
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


def test_a_memory_url_is_one_store_per_name() -> None:
    first, second, other = (open_store(f"memory://{name}") for name in ("one", "one", "two"))
    first.put("a", b"1")
    assert second.get("a") == first.get("a")
    assert (other.get("a"), first.url) == (None, "memory://one")


@pytest.mark.parametrize("url", ["s3://", "http://example.com", "file://elsewhere/x", "ftp://x", "s3:///key"])
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        open_store(url)


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
