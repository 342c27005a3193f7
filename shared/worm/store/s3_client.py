"""The obstore side of `S3Store`: making its client, and turning its answers into ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.store import S3Store as ObjectClient

from worm.errors import Denied
from worm.store.base import ObjectInfo, Won
from worm.store.content import exact_etag, whole_seconds
from worm.store.s3_listing import exact_version

if TYPE_CHECKING:
    from obstore import Attributes, GetResult, PutResult
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Config

CONTENT_TYPES = {".json": "application/json", ".ndjson": "application/x-ndjson"}
PROXIES = frozenset({"http_proxy", "all_proxy"})
CREDENTIAL_TTL = timedelta(minutes=5)  # below botocore's own margin before expiry, so what it hands out stays valid


def object_client(
    bucket: str, endpoint_url: str | None, region: str | None, agent: str, timeout_seconds: float
) -> ObjectClient:
    """A client that never repeats a request. Endpoints given by the operator are addressed by path."""
    is_plain = endpoint_url is not None and endpoint_url.startswith("http://")
    config: S3Config = {"virtual_hosted_style_request": endpoint_url is None and "." not in bucket}
    if endpoint_url is not None:
        config["endpoint"] = endpoint_url
    if region is not None:
        config["region"] = region
    return ObjectClient(
        bucket,
        config=config,
        retry_config={"max_retries": 0},
        client_options={
            "allow_http": is_plain,
            "allow_invalid_certificates": is_plain and not _has_proxy(),
            "user_agent": agent,
            "timeout": timedelta(seconds=timeout_seconds),
            "connect_timeout": timedelta(seconds=min(5.0, timeout_seconds)),
        },
        credential_provider=None if "AWS_ACCESS_KEY_ID" in os.environ else _credential_chain(region),
    )


def _has_proxy() -> bool:
    """May requests to a plain endpoint go through a proxy, which may have a certificate? Without one nobody shows any,
    so those of the system need not be read, which takes longer than a request nearby."""
    return any(name.lower() in PROXIES and value for name, value in os.environ.items())


def _credential_chain(region: str | None) -> Boto3CredentialProvider:
    """boto3's chain (profiles, containers, instances), for where no key is in the environment."""
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session(region_name=region)
    if session.get_credentials() is None:
        raise Denied("no AWS credentials were found", hint="set AWS_ACCESS_KEY_ID or AWS_PROFILE, or give a role")
    return Boto3CredentialProvider(session, ttl=CREDENTIAL_TTL)


def attributes(key: str, metadata: Mapping[str, str]) -> Attributes:
    """What obstore sends beside the body: our metadata, and the content type by the key's ending."""
    sent: dict[str, str] = dict(metadata)
    for ending, content_type in CONTENT_TYPES.items():
        if key.endswith(ending):
            sent["Content-Type"] = content_type
    return sent


def info_of(key: str, found: GetResult) -> ObjectInfo:
    """The headers of an answer. Names of metadata are lower-case; the capitalised ones are headers."""
    meta = found.meta
    return ObjectInfo(
        key=key,
        etag=exact_etag(meta["e_tag"]),
        size=meta["size"],
        last_modified=whole_seconds(meta["last_modified"]),
        version_id=exact_version(meta["version"]),
        metadata={str(name): value for name, value in found.attributes.items() if str(name) == str(name).lower()},
    )


def won_of(stored: PutResult) -> Won:
    """The answer of a PUT that succeeded."""
    return Won(exact_etag(stored["e_tag"]), exact_version(stored["version"]))
