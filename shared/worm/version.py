"""The version, the address of the documentation, and the user agent of our requests: the embedded AWS and access logs
count requests by role."""

from __future__ import annotations

VERSION = "0.1.0"
DOCS_URL = "https://s3worm.github.io/s3worm-python/"
DEFAULT_ROLE = "sdk"


def user_agent(role: str | None) -> str:
    """`worm/0.1.0 role/capture`."""
    return f"worm/{VERSION} role/{role or DEFAULT_ROLE}"
