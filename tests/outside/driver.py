"""Calls of s3fs and of the `minio` package, run by the Python of .venv-clients: neither fits beside our own packages.

Reads a JSON list of `[client, method, arguments]` from standard input and makes the calls in this order. The endpoint,
the credentials and the bucket are in the environment. Bytes are given as text.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def s3fs_call(method: str, arguments: Sequence[Any]) -> None:
    """Paths are keys: the bucket's name goes in front of them."""
    import s3fs

    fs = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], use_listings_cache=False)
    bucket = os.environ["WORM_BUCKET"]

    def path(key: Any) -> Any:
        return [f"{bucket}/{one}" for one in key] if isinstance(key, list) else f"{bucket}/{key}"

    if method == "pipe":
        files: Mapping[str, str] = arguments[0]
        fs.pipe({path(key): body.encode() for key, body in files.items()})
    elif method == "write":
        with fs.open(path(arguments[0]), "wb", block_size=5 * 2**20) as file:  # larger than a block: by parts
            file.write(arguments[1].encode() * arguments[2])
    elif method == "touch":
        fs.touch(path(arguments[0]), truncate=True)
    elif method == "rm":
        fs.rm(path(arguments[0]), recursive=True)
    else:
        source, target = arguments
        getattr(fs, method)(path(source), path(target), recursive=not source.endswith(".json"))  # cp, mv


def minio_call(method: str, arguments: Sequence[Any]) -> None:
    from minio import Minio
    from minio.commonconfig import REPLACE, ComposeSource, CopySource
    from minio.deleteobjects import DeleteObject

    address = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    keys = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    client = Minio(address, access_key=keys[0], secret_key=keys[1], secure=False, region=os.environ["AWS_REGION"])
    bucket = os.environ["WORM_BUCKET"]
    if method == "put":
        body = arguments[1].encode()
        client.put_object(bucket, arguments[0], io.BytesIO(body), len(body), content_type="application/json")
    elif method == "copy":
        client.copy_object(bucket, arguments[1], CopySource(bucket, arguments[0]))
    elif method == "retag":
        source = CopySource(bucket, arguments[0])
        client.copy_object(bucket, arguments[0], source, metadata=arguments[1], metadata_directive=REPLACE)
    elif method == "compose":
        client.compose_object(bucket, arguments[1], [ComposeSource(bucket, key) for key in arguments[0]])
    elif method == "remove_many":
        errors = list(client.remove_objects(bucket, [DeleteObject(*one) for one in arguments[0]]))
        if errors:
            raise SystemExit(f"minio: {errors}")
    else:
        client.remove_object(bucket, arguments[0], version_id=arguments[1] if len(arguments) > 1 else None)


def main() -> None:
    calls = {"s3fs": s3fs_call, "minio": minio_call}
    for client, method, arguments in json.load(sys.stdin):
        calls[client](method, arguments)


if __name__ == "__main__":
    main()
