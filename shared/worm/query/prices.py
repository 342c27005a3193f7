"""What requests cost: the price table behind `explain`.

List prices of S3 Standard in us-east-1 (aws.amazon.com/s3/pricing, as of November 2026), US dollars for 1,000 requests.
Requests only: reading inside a region moves bytes for nothing, and what leaves it depends on where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

USD_PER_1000: Mapping[str, float] = MappingProxyType(
    {"GET": 0.0004, "HEAD": 0.0004, "PUT": 0.005, "LIST": 0.005, "VERSIONS": 0.005, "DELETE": 0.0}
)


def usd(requests: Mapping[str, int]) -> float:
    """The price of requests by kind, in the kinds of `RequestCounter`."""
    return round(sum(USD_PER_1000[kind] * count for kind, count in requests.items()) / 1000, 9)
