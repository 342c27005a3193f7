"""S3 requests as a server sees them: which bucket and key, of which kind, sent in which role."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

_ROLE = re.compile(r"\brole/([\w.-]+)")
# Sub-resources of a bucket whose GET is not a listing.
_BUCKET_SETTINGS = frozenset(
    {
        *("accelerate", "acl", "analytics", "cors", "encryption", "intelligent-tiering", "inventory", "lifecycle"),
        *(
            "location",
            "logging",
            "metrics",
            "notification",
            "object-lock",
            "ownershipControls",
            "policy",
            "policyStatus",
        ),
        *("publicAccessBlock", "replication", "requestPayment", "tagging", "uploads", "versioning", "website"),
    }
)

Environ = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """An S3 request in path style: the bucket, the key ("" for the bucket itself) and the names in the query."""

    method: str
    bucket: str
    key: str
    query: frozenset[str]

    @classmethod
    def of(cls, environ: Environ) -> Request:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
        bucket, _, key = path[1:].partition("/")
        query = environ.get("QUERY_STRING", "")
        names = frozenset(part.partition("=")[0] for part in query.split("&")) if query else frozenset()
        return cls(environ["REQUEST_METHOD"], bucket, key, names)

    @property
    def kind(self) -> str | None:
        """GET, HEAD, PUT, DELETE, LIST or VERSIONS; None if it is not a data request (bucket settings)."""
        if self.key:
            return "PUT" if self.method == "POST" else self.method
        if self.method == "POST" and "delete" in self.query:
            return "DELETE"
        if self.method != "GET" or not self.bucket:
            return "HEAD" if self.method == "HEAD" else None
        if "versions" in self.query:
            return "VERSIONS"
        return None if self.query & _BUCKET_SETTINGS else "LIST"

    def written_keys(self, body: bytes) -> list[str]:
        """The keys a write may change; for a multi-delete, they are in the body."""
        if self.key:
            return [self.key]
        if "delete" not in self.query or self.method != "POST":
            return []
        try:
            elements = ElementTree.fromstring(body).iter()
        except ElementTree.ParseError:
            return []  # the server answers MalformedXML and deletes nothing
        keys = [element.text or "" for element in elements if element.tag.rpartition("}")[2] == "Key"]
        return list(dict.fromkeys(keys))

    def reason(self, environ: Environ) -> str:
        """The API call, as events name it."""
        if self.method == "PUT":
            return "CopyObject" if "HTTP_X_AMZ_COPY_SOURCE" in environ else "PutObject"
        if self.method == "POST" and "uploadId" in self.query:
            return "CompleteMultipartUpload"
        return "DeleteObject"


class RoleCounts:
    """Requests by role and kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, request: Request, user_agent: str) -> None:
        kind = request.kind
        if kind is None:
            return
        match = _ROLE.search(user_agent)
        with self._lock:
            self._counts[match[1] if match else "other", kind] += 1

    def snapshot(self) -> dict[str, dict[str, int]]:
        result: dict[str, dict[str, int]] = {}
        with self._lock:
            for (role, kind), count in sorted(self._counts.items()):
                result.setdefault(role, {})[kind] = count
        return result
