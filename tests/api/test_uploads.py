"""Uploads past the limit of a function: a URL of S3 for one object under one condition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

import boto3
import pytest
from botocore.httpsession import URLLib3Session

from tests.api.client import Client
from tests.api.conftest import SCHEMA
from worm.api.app import Api
from worm.clock import SystemClock, moment_of
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.s3 import S3Store

DOCUMENTS = "/v1/models/Customer/documents"
MODELS: dict[str, Any] = {
    **SCHEMA["models"],  # type: ignore[dict-item]  # a mapping, by its shape above
    "Booked": {"path": "#org/@booked/(id:slug)", "space": "main", "fields": {"n": {"type": "integer"}}},
    "Event": {"path": "#org/@events/(id:slug)", "mode": "append", "fields": {"n": {"type": "integer"}}},
}


@pytest.fixture
def on_s3(moto_endpoint: str, aws_environment: None) -> Worm:
    bucket = f"uploads-{uuid4()}"
    s3 = boto3.client("s3", endpoint_url=moto_endpoint)
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store = S3Store(bucket, "data", endpoint_url=moto_endpoint)
    session = Worm(store, load_schema({"version": "1.0", "models": MODELS}), probe=False)
    session.push()
    return session


def client_of(session: Worm) -> Client:
    return Client(Api(lambda: session))


def sent(offer: Mapping[str, Any], document: Mapping[str, Any]) -> int:
    """The status of S3 for the upload that the offer describes."""
    from botocore.awsrequest import AWSRequest

    request = AWSRequest(offer["method"], offer["url"], dict(offer["headers"]), json.dumps(document).encode())
    return int(URLLib3Session().send(request.prepare()).status_code)


def test_a_document_of_8_mb_is_uploaded_and_recorded_with_its_author_and_reason(on_s3: Worm) -> None:
    """Lambda takes 6 MB. The upload is recorded like any other."""
    client = client_of(on_s3)
    headers = {"If-None-Match": "*", "Worm-Reason": "first%20import"}
    offer = client.call("POST", f"{DOCUMENTS}/large/upload", headers=headers)
    assert offer.status == 200, offer.body
    assert (offer.json["method"], offer.headers["Cache-Control"]) == ("PUT", "no-store")
    assert sent(offer.json, {"name": "x" * 8_000_000}) == 200
    [report] = on_s3.sweep("Customer")
    assert report.recorded == 1
    [entry] = on_s3.model("Customer").get_history("large")
    assert (entry.actor, entry.metadata["reason"]) == ("local", "first import")
    assert len(client.call("GET", f"{DOCUMENTS}/large").json["document"]["name"]) == 8_000_000


def test_the_url_is_for_one_key_for_15_minutes_and_its_condition_is_signed(on_s3: Worm) -> None:
    offer = client_of(on_s3).call("POST", f"{DOCUMENTS}/a%2Fb/upload", headers={"If-None-Match": "*"}).json
    url = urlsplit(offer["url"])
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert unquote(url.path).endswith(f"/data/{on_s3.collection('Customer').documents.key('a/b')}")
    assert query["X-Amz-Expires"] == "900"
    signed = set(query["X-Amz-SignedHeaders"].split(";"))
    assert signed == {"host", *(name.lower() for name in offer["headers"])}
    assert set(offer["headers"]) == {"Content-Type", "If-None-Match", "x-amz-meta-worm-actor"}
    expires = moment_of(offer["expiresAt"])
    assert expires is not None
    assert 890 < (expires - SystemClock().now()).total_seconds() <= 900


def test_a_url_works_once(on_s3: Worm) -> None:
    """Who finds it in a log later must not be able to put an old document back."""
    client = client_of(on_s3)
    offer = client.call("POST", f"{DOCUMENTS}/a/upload", headers={"If-None-Match": "*"}).json
    assert [sent(offer, {"name": "A"}), sent(offer, {"name": "again"})] == [200, 412]
    etag = client.call("GET", f"{DOCUMENTS}/a").etag
    over = client.call("POST", f"{DOCUMENTS}/a/upload", headers={"If-Match": etag}).json
    assert over["headers"]["If-Match"].startswith('"')
    assert [sent(over, {"name": "B"}), sent(over, {"name": "again"})] == [200, 412]
    assert client.call("GET", f"{DOCUMENTS}/a").json["document"]["name"] == "B"


def test_the_condition_is_looked_at_before_megabytes_are_sent(on_s3: Worm) -> None:
    client, path = client_of(on_s3), f"{DOCUMENTS}/a/upload"
    missing = client.call("POST", path, headers={"If-Match": "*"})
    made = client.call("POST", DOCUMENTS, {"id": "a", "name": "A"})
    row = client.call("GET", DOCUMENTS).json["items"][0]["version"]
    client.call("PATCH", f"{DOCUMENTS}/b", {"name": "B"})
    answers = [
        missing,
        client.call("POST", path),
        client.call("POST", path, headers={"If-None-Match": "*"}),
        client.call("POST", path, headers={"If-Match": '"other"'}),
        client.call("POST", path, headers={"If-Match": "*", "If-None-Match": "*"}),
        client.call("POST", path, headers={"If-Match": f'"{row}"'}),
        client.call("POST", path, headers={"If-Match": f'"other", {made.etag}'}),
        client.call("POST", path, headers={"If-Match": "*"}),
    ]
    assert [one.status for one in answers] == [412, 428, 412, 412, 400, 200, 200, 200]


def test_what_an_upload_cannot_write_is_refused_with_the_way_to_go(on_s3: Worm) -> None:
    client, new = client_of(on_s3), {"If-None-Match": "*"}
    space = client.call("POST", "/v1/models/Booked/documents/a/upload", headers=new)
    assert (space.status, space.slug) == (422, "in-space")
    assert "PUT" in space.json["hint"]
    assert client.call("POST", "/v1/models/Event/documents/a/upload", headers=new).status == 200
    assert client.call("POST", "/v1/models/Event/documents/a/upload", headers={"If-Match": "*"}).status == 422
    assert client.call("POST", "/v1/models/None/documents/a/upload", headers=new).status == 404
    assert client.call("POST", "/v1/models/Order/documents/x/upload", headers=new).status == 422


def test_where_there_is_no_bucket_the_caller_is_told_to_put(session: Worm) -> None:
    answer = client_of(session).call("POST", f"{DOCUMENTS}/a/upload", headers={"If-None-Match": "*"})
    assert (answer.status, answer.slug) == (501, "no-bucket")
    assert answer.json["hint"].startswith("PUT")
