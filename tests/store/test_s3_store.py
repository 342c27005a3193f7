"""What is particular to S3: the two engines, retries, errors, and keys of the world outside."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.emulators import new_bucket, s3_client
from tests.store.scripted_s3 import Answer, ScriptedS3, scripted_s3
from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Denied, Invalid, NotFound, Unavailable, UnsafeStore
from worm.store.base import (
    NULL_VERSION,
    AttemptOutcome,
    Condition,
    IfAbsent,
    IfMatch,
    Lost,
    Object,
    Read,
    Won,
    about_to_read,
    content_etag,
)
from worm.store.parallel import Postponed, Room
from worm.store.s3 import TRIES, S3Store
from worm.store.s3_errors import TryAgain, absent_or_raise, failure_of_status
from worm.version import VERSION

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script() -> Iterator[ScriptedS3]:
    with scripted_s3() as server:
        yield server


@pytest.fixture
def scripted(script: ScriptedS3) -> S3Store:
    clock = VirtualClock()
    return S3Store("bucket", endpoint_url=script.url, role="capture", clock=clock, ids=Ids.seeded(1, clock))


@pytest.fixture
def outside(moto_endpoint: str) -> S3Store:
    """A store on a versioned bucket of moto, to which others upload too."""
    return S3Store(new_bucket(moto_endpoint, versioned=True), endpoint_url=moto_endpoint)


def test_importing_and_opening_loads_no_boto3() -> None:
    """boto3 costs 330 ms of every cold start."""
    code = (
        "import sys; from worm.store.s3 import S3Store; S3Store('bucket', endpoint_url='http://127.0.0.1:1');"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('boto3', 'botocore')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_both_engines_name_their_version_and_role(script: ScriptedS3, scripted: S3Store) -> None:
    scripted.get("a")
    scripted.delete("a")
    script.error(404, "NoSuchBucket")
    with pytest.raises(NotFound):
        list(scripted.list(""))
    named = [f"worm/{VERSION} role/capture" in request.headers["user-agent"] for request in script.requests]
    assert named == [True, True, True]


def test_the_version_in_the_user_agent_is_the_projects() -> None:
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()


def test_the_endpoint_region_and_role_come_from_the_environment(
    script: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", script.url)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("WORM_ROLE", "sweep")
    store = S3Store("bucket", "some/prefix/")
    assert (store.url, store.get("a/b")) == ("s3://bucket/some/prefix", None)
    (request,) = script.requests
    assert (request.method, request.path) == ("GET", "/bucket/some/prefix/a/b")
    assert "role/sweep" in request.headers["user-agent"]
    assert "/eu-north-1/s3/" in request.headers["authorization"]


@pytest.mark.parametrize(
    ("endpoint_url", "proxy", "is_verified"),
    [
        ("http://127.0.0.1:9000", None, False),
        ("http://127.0.0.1:9000", ("HTTP_PROXY", "https://proxy"), True),
        ("http://127.0.0.1:9000", ("all_proxy", "https://proxy"), True),
        ("http://127.0.0.1:9000", ("HTTP_PROXY", ""), False),
        ("https://minio.example.com", None, True),
        ("HTTPS://minio.example.com", None, True),
        (None, None, True),
    ],
)
def test_certificates_are_verified_wherever_one_can_be_shown(
    endpoint_url: str | None, proxy: tuple[str, str] | None, is_verified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, object]] = []
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    if proxy is not None:
        monkeypatch.setenv(*proxy)
    monkeypatch.setattr("worm.store.s3.ObjectClient", lambda bucket, **options: given.append(options["client_options"]))
    S3Store("bucket", endpoint_url=endpoint_url)
    assert [options["allow_invalid_certificates"] for options in given] == [not is_verified]
    assert [options["allow_http"] for options in given] == [str(endpoint_url).startswith("http:")]


def test_credentials_come_from_botos_chain_when_none_are_in_the_environment(
    script: ScriptedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text("[people]\naws_access_key_id = FROMPROFILE\naws_secret_access_key = x\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Denied):
        S3Store("bucket", endpoint_url=script.url)
    monkeypatch.setenv("AWS_PROFILE", "people")
    assert S3Store("bucket", endpoint_url=script.url).get("a") is None
    assert "Credential=FROMPROFILE/" in script.requests[0].headers["authorization"]


def test_a_body_cut_short_is_read_again_and_never_handed_out(script: ScriptedS3, scripted: S3Store) -> None:
    """F10."""
    script.object(b"half", declared=8)
    script.object(b"hal", declared=8)
    script.object(b"complete")
    found = scripted.get("a")
    assert found == Object("a", '"e"', 8, datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC), None, {}, b"complete")
    assert scripted.requests.snapshot() == {"GET": 3}


def test_a_body_that_is_always_cut_short_is_unavailable(script: ScriptedS3, scripted: S3Store) -> None:
    for _ in range(TRIES):
        script.object(b"half", declared=8)
    with pytest.raises(Unavailable):
        scripted.get("a")
    assert len(script.requests) == TRIES


def test_a_range_cut_short_is_read_again_and_never_handed_out(script: ScriptedS3, scripted: S3Store) -> None:
    """F10."""
    script.piece(b"23", "bytes 2-5/8", declared=4)
    script.piece(b"23", "bytes 2-5/8")  # its length is right; what it says to be is more
    script.piece(b"23", "bytes 2-3/8")  # another range than the one asked for
    script.object(b"01234567")  # the range was not heard
    script.piece(b"2345", "bytes 2-5/8")
    assert scripted.get_range("a", 2, 4) == b"2345"
    assert [request.headers["range"] for request in script.requests] == ["bytes=2-5"] * 5
    assert (scripted.requests.snapshot(), scripted.requests.bytes_read) == ({"GET": 5}, 4)


def test_a_read_survives_overload_and_hang_ups_with_bounded_jittered_pauses(
    script: ScriptedS3, scripted: S3Store
) -> None:
    script.error(503, "SlowDown")
    script.answers.append(Answer(hang_up=True))
    script.error(500, "InternalError")
    script.object(b"x")
    found = scripted.get("a")
    assert found is not None
    assert found.body == b"x"
    assert 0 < scripted.clock.monotonic() < 2


@pytest.mark.slow
def test_a_store_that_stays_away_is_unavailable_for_every_kind_of_read_and_unconditional_write(
    script: ScriptedS3, scripted: S3Store
) -> None:
    for call in (
        lambda: scripted.get("a"),
        lambda: scripted.get_range("a", 0, 1),
        lambda: scripted.head("a"),
        lambda: scripted.put("a", b"x"),
        lambda: scripted.delete("a"),
        lambda: list(scripted.list("")),
        lambda: list(scripted.versions("a")),
    ):
        script.requests.clear()
        script.answers.extend([Answer(503, b"<Error><Code>SlowDown</Code></Error>")] * TRIES)
        with pytest.raises(Unavailable):
            call()
        assert len(script.requests) == TRIES


def test_refused_credentials_are_denied_at_once(script: ScriptedS3, scripted: S3Store) -> None:
    for call in (
        lambda: scripted.get("a"),
        lambda: scripted.get_range("a", 0, 1),
        lambda: scripted.put("a", b"x"),
        lambda: scripted.delete("a"),
        lambda: list(scripted.list("")),
        lambda: scripted.put_if_absent("a", b"x"),
    ):
        script.requests.clear()
        script.error(403, "AccessDenied")
        with pytest.raises(Denied):
            call()
        assert len(script.requests) == 1
    script.error(400, "ExpiredToken")
    with pytest.raises(Denied):
        scripted.get("a")


def test_a_request_the_store_will_never_accept_is_invalid_at_once(script: ScriptedS3, scripted: S3Store) -> None:
    script.error(400, "EntityTooLarge")
    with pytest.raises(Invalid, match="EntityTooLarge"):
        scripted.put_if_absent("a", b"x")
    assert len(script.requests) == 1


@pytest.mark.parametrize("condition", [IfAbsent(), IfMatch('"e"')])
@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (412, "PreconditionFailed", AttemptOutcome.REFUSED),
        (409, "ConditionalRequestConflict", AttemptOutcome.CONTENDED),
        (403, "AccessDenied", AttemptOutcome.DENIED),
        (500, "InternalError", AttemptOutcome.UNKNOWN),
        (503, "SlowDown", AttemptOutcome.UNKNOWN),
        (400, "RequestTimeout", AttemptOutcome.UNKNOWN),
    ],
)
def test_one_attempt_is_one_request_with_its_outcome(
    script: ScriptedS3,
    scripted: S3Store,
    condition: Condition,
    status: int,
    code: str,
    outcome: AttemptOutcome,
) -> None:
    """A client that repeats a conditional write by itself turns its own success into a conflict."""
    script.error(status, code)
    attempt = scripted.attempt_put("a", b"x", condition, {})
    assert (attempt.outcome, attempt.reason, len(script.requests)) == (outcome, f"{status} {code}", 1)


def test_an_attempt_without_an_answer_is_unknown_and_a_missing_key_is_gone(
    script: ScriptedS3, scripted: S3Store
) -> None:
    script.answers.append(Answer(hang_up=True))
    assert scripted.attempt_put("a", b"x", IfAbsent(), {}).outcome is AttemptOutcome.UNKNOWN
    script.answers.append(Answer(hang_up=True))
    assert scripted.attempt_delete("a", '"e"').outcome is AttemptOutcome.UNKNOWN
    assert scripted.attempt_put("a", b"x", IfMatch('"e"'), {}).outcome is AttemptOutcome.GONE
    assert scripted.attempt_delete("a", '"e"').outcome is AttemptOutcome.GONE
    assert [request.method for request in script.requests] == ["PUT", "DELETE", "PUT", "DELETE"]


def test_a_conflict_is_settled_by_reading_and_sending_the_same_put_again(script: ScriptedS3, scripted: S3Store) -> None:
    script.error(409, "ConditionalRequestConflict")
    script.error(404, "NoSuchKey")
    script.answers.append(Answer(200, b"", {"ETag": '"new"', "x-amz-version-id": "v1"}))
    assert scripted.put_if_absent("a", b"x") == Won('"new"', "v1")
    first, read, second = script.requests
    assert (first.method, read.method, second.method) == ("PUT", "GET", "PUT")
    put_ids = [request.headers["x-amz-meta-worm-put-id"] for request in (first, second)]
    assert (put_ids[0], first.headers["if-none-match"], second.body) == (put_ids[1], "*", b"x")


def test_an_endpoint_that_is_not_there_leaves_a_conditional_write_unknown() -> None:
    clock = VirtualClock()
    store = S3Store("bucket", endpoint_url="http://127.0.0.1:1", clock=clock, ids=Ids.seeded(1, clock))
    with pytest.raises(CommitStateUnknown):
        store.put_if_absent("a", b"x")


def test_a_missing_bucket_is_not_found_for_writes_and_listings(moto_endpoint: str) -> None:
    store = S3Store("no-such-bucket", endpoint_url=moto_endpoint)
    for call in (
        lambda: store.put("a", b""),
        lambda: store.put_if_absent("a", b""),
        lambda: store.put_if_match("a", b"", '"x"'),
        lambda: list(store.list("")),
        lambda: list(store.versions("a")),
    ):
        with pytest.raises(NotFound, match="bucket"):
            call()


def test_one_key_that_obstore_cannot_spell_does_not_hide_the_others_from_a_listing(
    outside: S3Store, moto_endpoint: str
) -> None:
    """Anybody may upload `a//b` or a folder marker; a sweep must still see the rest, and the odd ones by name."""
    client = s3_client(moto_endpoint)
    keys = ["h/", "h/../x", "h/./y", "h//b", "h/good"]
    for key in keys:
        client.put_object(Bucket=outside.bucket, Key=key, Body=b"1")
    assert sorted(row.key for row in outside.list("h/")) == sorted(keys)
    assert sorted(row.key for row in outside.list_versions("h/")) == sorted(keys)


@pytest.mark.slow
def test_a_listing_of_more_than_a_page_is_complete_and_lazy(outside: S3Store) -> None:
    """F37."""
    keys = [f"many/{number:04d}" for number in range(1003)]
    outside_client = outside._boto.client
    for key in keys:
        outside_client.put_object(Bucket=outside.bucket, Key=key, Body=b"")
    with outside.requests.measure() as spent:
        rows = outside.list("many/")
        assert next(rows).key == keys[0]
    assert spent == {"LIST": 1, "total": 1}
    assert [row.key for row in outside.list("many/")] == keys
    assert [row.key for row in outside.list("many/", limit=1002)] == keys[:1002]
    assert [row.key for row in outside.list_versions("many/")] == keys


def test_a_listing_with_a_limit_asks_for_no_more_keys(script: ScriptedS3, scripted: S3Store) -> None:
    """Without it, S3 would send a thousand keys where one is wanted."""
    script.answers.append(Answer(200, b"<ListBucketResult></ListBucketResult>"))
    assert list(scripted.list("a/", limit=1)) == []
    assert "max-keys=1" in script.requests[0].path.split("?")[1].split("&")


@pytest.mark.slow
def test_versions_of_more_than_a_page_are_complete(moto_endpoint: str) -> None:
    store = S3Store(new_bucket(moto_endpoint, versioned=True), endpoint_url=moto_endpoint)
    ids = [store.put("doc", b"%d" % number).version_id for number in range(1003)]
    assert [row.version_id for row in store.versions("doc")] == ids[::-1]


def test_a_version_from_before_versioning_stays_readable_after_it_was_replaced(moto_endpoint: str) -> None:
    """Reading it by 'no version id' would silently give the newest content instead."""
    bucket = new_bucket(moto_endpoint)
    store = S3Store(bucket, endpoint_url=moto_endpoint)
    old = store.put("doc", b"old")
    s3_client(moto_endpoint).put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    (only,) = store.versions("doc")
    assert (old.version_id, only.version_id) == (None, None)
    new = store.put("doc", b"new")
    newest, oldest = store.versions("doc")
    assert (newest.version_id, oldest.version_id) == (new.version_id, NULL_VERSION)
    assert oldest.is_version(old.version_id)
    found = store.get_many([Read("doc", newest.version_id), Read("doc", oldest.version_id)])
    assert [item.body for item in found if isinstance(item, Object)] == [b"new", b"old"]


def test_metadata_and_content_type_reach_other_clients(outside: S3Store, moto_endpoint: str) -> None:
    outside.put("a.json", b"{}", metadata={"worm-actor": "Zo%C3%AB"})
    head = s3_client(moto_endpoint).head_object(Bucket=outside.bucket, Key="a.json")
    assert (head["Metadata"], head["ContentType"]) == ({"worm-actor": "Zo%C3%AB"}, "application/json")
    assert head["ETag"] == content_etag(b"{}")


def test_a_prefix_never_reaches_beside_itself(outside: S3Store, moto_endpoint: str) -> None:
    """F42: `acme` must not see `acme-evil`."""
    acme = S3Store(outside.bucket, "t/acme", endpoint_url=moto_endpoint)
    outside.put("t/acme-evil/doc", b"evil")
    acme.put("doc", b"good")
    assert [row.key for row in acme.list("")] == ["doc"]
    assert [row.key for row in acme.list_versions("")] == ["doc"]
    assert acme.put_if_absent("doc", b"x") == Lost(acme.get("doc") or pytest.fail("absent"))


def test_requests_reach_an_ipv6_endpoint_only_path_style(script: ScriptedS3) -> None:
    S3Store("my.bucket", endpoint_url=script.url).get("a")
    assert script.requests[0].path == "/my.bucket/a"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_store_that_does_not_answer_is_named_while_it_is_waited_for(
    silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A minute of silence looks like a program that hangs."""
    monkeypatch.setattr("worm.store.s3.WORD_SECONDS", 0.3)
    monkeypatch.setattr("worm.store.s3.RETRY_SECONDS", 0.1)
    store = S3Store("bucket", endpoint_url=silent, timeout_seconds=1.0)
    with pytest.raises(Unavailable, match=r"check the endpoint \(AWS_ENDPOINT_URL\)"):
        store.get("a/document")
    said = [record.getMessage() for record in caplog.records if record.name == "worm"]
    assert said == [f"no answer yet from s3://bucket at {silent} for 'a/document' after 0 s; giving up after about 0 s"]


@pytest.mark.slow
def test_waiting_that_is_cut_into_short_tries_is_named_too(
    silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worm.store.s3.WORD_SECONDS", 0.25)
    with pytest.raises(Unavailable):
        S3Store("bucket", endpoint_url=silent, timeout_seconds=0.1).get("a")
    assert len([record for record in caplog.records if record.name == "worm"]) == 1


def test_a_store_that_answers_is_not_spoken_of(outside: S3Store, caplog: pytest.LogCaptureFixture) -> None:
    outside.put("a", b"1")
    before = threading.active_count()
    outside.get("a")
    assert (threading.active_count() <= before, [one for one in caplog.records if one.name == "worm"]) == (True, [])


@pytest.mark.parametrize(
    ("status", "code", "is_passing", "is_missing_version"),
    [
        (400, "InvalidArgument", False, True),
        (405, "MethodNotAllowed", False, True),
        (400, "RequestTimeout", True, False),
        (400, "ExpiredToken", False, False),
        (403, "AccessDenied", False, False),
        (500, "InternalError", True, False),
        (501, "NotImplemented", False, False),
        (503, "SlowDown", True, False),
    ],
)
def test_what_a_failure_means(status: int, code: str, is_passing: bool, is_missing_version: bool) -> None:
    """A passing one that is taken for a missing version loses that version from the history."""
    failure = failure_of_status(status, code)
    assert (failure.is_passing, failure.is_missing_version) == (is_passing, is_missing_version)
    expected: tuple[type[Exception], ...] = (TryAgain,) if is_passing else (Denied, Invalid, UnsafeStore)
    with pytest.raises(expected):
        absent_or_raise(failure, "a")
    if is_missing_version:
        absent_or_raise(failure, "a", "v1")
    else:
        with pytest.raises(expected):
            absent_or_raise(failure, "a", "v1")


def test_a_listing_of_a_prefix_that_no_key_can_have_is_refused(script: ScriptedS3, scripted: S3Store) -> None:
    for prefix in ("a//b/", "../"):
        with pytest.raises(Invalid):
            list(scripted.list(prefix))
    assert script.requests == []


NAMED = b"<Error><Code>%s</Code><Message>no</Message><RequestId>REQ42</RequestId><HostId>h=</HostId></Error>"


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.get("a"),
        lambda store: store.get_range("a", 0, 3),
        lambda store: store.put("a", b""),
        lambda store: store.put_if_absent("a", b""),
        lambda store: store.put_if_match("a", b"", '"e"'),
        lambda store: list(store.list("")),
        lambda store: list(store.versions("a")),
        lambda store: store.delete("a"),
        lambda store: store.delete_if_match("a", '"e"'),
    ],
)
def test_an_error_has_the_id_that_s3_gave_the_request(
    script: ScriptedS3, scripted: S3Store, ask: Callable[[S3Store], object]
) -> None:
    """Without it, AWS support cannot find a request, nor can anybody in the access logs."""
    script.answers.append(Answer(403, NAMED % b"AccessDenied", {"x-amz-request-id": "REQ42"}))
    with pytest.raises(Denied) as raised:
        ask(scripted)
    assert raised.value.request_id == "REQ42"


def test_the_last_of_many_tries_gives_its_request_id(script: ScriptedS3, scripted: S3Store) -> None:
    for _ in range(TRIES):
        script.answers.append(Answer(503, NAMED % b"SlowDown", {"x-amz-request-id": "REQ42"}))
    with pytest.raises(Unavailable) as raised:
        scripted.get("a")
    assert raised.value.request_id == "REQ42"


def test_a_body_that_does_not_fit_beside_what_others_hold_is_not_read(script: ScriptedS3, scripted: S3Store) -> None:
    """An event may give no size, or a wrong one; the answer's headers give the true one before the body is there."""
    script.object(b"x" * 20)
    room, found = Room(limit=20), list[object]()

    def first(_: int) -> None:
        about_to_read(5)
        other = threading.Thread(target=lambda: found.append(room.within(scripted.get, "a")))
        other.start()
        other.join()

    room.within(first, 0)
    (stopped,) = found
    assert isinstance(stopped, Postponed)
    assert (stopped.need, scripted.requests.bytes_read) == (20, 0)
