"""Bytes PUT per byte of pages while pages are flushed, compacted and collected: ours and SlateDB's."""

from __future__ import annotations

import random

from scripts.benchmarks._pages import BUCKET, OurPages, SlatePages, some_pages
from worm.dev.aws import Aws

EAGER_COMPACTOR = {"compactor_options.poll_interval": '"100ms"'}
SETTLE_SECONDS = 3.0


def amplification(aws: Aws, flushes: int) -> dict[str, object]:
    """10,000 pages, then 500 random ones with each flush; ours compacts when that is due, SlateDB at its own pace."""
    count, changed = 10_000, 500
    batches = [some_pages(random.Random(0), range(count))]
    rng = random.Random(1)
    batches += [some_pages(rng, rng.sample(range(count), changed)) for _ in range(flushes)]
    page_bytes = sum(len(page) + len(data) for batch in batches for page, data in batch.items())
    ours, slate = OurPages(aws.endpoint_url, "amplified"), SlatePages(aws.endpoint_url, "amplified", EAGER_COMPACTOR)
    for batch in batches:
        ours.write(batch)
        ours.compact()
        slate.write(batch)
    ours.collect()
    slate.settle(SETTLE_SECONDS)
    layers = ours.reader.root.read().branch("main").layers
    ours.close()
    slate.close()
    put = {name: put_bytes(aws, keeper.name) for name, keeper in {"ours": ours, "slatedb": slate}.items()}
    told: dict[str, object] = {name: round(size / page_bytes, 2) for name, size in put.items()}
    log = put_bytes(aws, f"{ours.name}/log")
    return {
        "flushes": flushes,
        "bytes_of_pages": page_bytes,
        "bytes_put_per_byte_of_pages": told,
        "ours_of_the_log_alone": round(log / page_bytes, 2),
        "ours_of_the_root_alone": round(put_bytes(aws, f"{ours.name}/manifest.json") / page_bytes, 2),
        "ours_live_layers": len(layers),
        "ratio": {"ours / slatedb": round(put["ours"] / put["slatedb"], 2)},
    }


def put_bytes(aws: Aws, prefix: str) -> int:
    """The bytes of all versions: the bucket keeps overwritten and deleted objects."""
    pages = aws.s3().get_paginator("list_object_versions").paginate(Bucket=BUCKET, Prefix=prefix)
    return sum(version["Size"] for page in pages for version in page.get("Versions", ()))
