"""Settings of the workers, from the environment variables that template.yaml sets. A missing one fails at start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from worm.collections.documents import MAX_DOCUMENT_BYTES
from worm.errors import Invalid


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the documents are, and how large one may be."""

    bucket: str
    prefix: str = ""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    threads: int = 16
    role: str = "worker"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        values = os.environ if environment is None else environment
        bucket = values.get("WORM_BUCKET", "")
        if not bucket:
            raise Invalid("the environment variable WORM_BUCKET is not set", hint="template.yaml sets it")
        return cls(
            bucket=bucket,
            max_document_bytes=_positive(values, "WORM_MAX_DOCUMENT_BYTES", MAX_DOCUMENT_BYTES),
            threads=_positive(values, "WORM_THREADS", 16),
            role=values.get("WORM_ROLE", "worker"),
        )


def _positive(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"the environment variable {name} must be a positive whole number, not {text!r}")
    return int(text)
