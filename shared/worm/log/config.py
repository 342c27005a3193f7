"""How a commit log is written and kept: sizes, windows, retries. Names and limits come from the format."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024


class LogConfig(BaseModel):
    """Settings of a commit log; `LogConfig.classic()` has the batching window of the original design.

    A window of 0 adapts: a commit that finds the log idle is written at once, all that arrive while a segment is being
    written go into the next one, and committers that come back after each acknowledgment are waited for
    (`log.group.Gathering`). With any other window, every segment waits that long, whether or not another commit
    arrives.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group_commit_window_ms: Annotated[float, Field(ge=0, le=10_000)] = 0
    group_commit_max_txns: Annotated[int, Field(ge=1, le=100_000)] = 1024
    log_segment_max_bytes: Annotated[int, Field(ge=1024, le=64 * MIB)] = 4 * MIB
    cas_max_retries: Annotated[int, Field(ge=1, le=100)] = 8
    cas_backoff_min_ms: Annotated[float, Field(gt=0, le=10_000)] = 1
    cas_backoff_max_ms: Annotated[float, Field(gt=0, le=60_000)] = 100
    gc_min_age_seconds: Annotated[float, Field(gt=0)] = 3600

    @classmethod
    def classic(cls) -> LogConfig:
        """Commits wait 2 ms for others, and at most 256 share a segment."""
        return cls(group_commit_window_ms=2, group_commit_max_txns=256)
