"""Settings of a space: limits of a transaction, and when snapshots are made."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024


class SpaceConfig(BaseModel):
    """Writers of one space may have different settings: none of them changes what is read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operations_max: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    reads_max: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    commit_bytes_max: Annotated[int, Field(ge=1024, le=256 * MIB)] = 16 * MIB
    document_bytes_max: Annotated[int, Field(ge=64, le=64 * MIB)] = 10 * MIB
    branch_depth_max: Annotated[int, Field(ge=1, le=1_000)] = 32
    blob_bytes_max: Annotated[int, Field(ge=1, le=900_000_000)] = 512 * MIB
    snapshot_every: Annotated[int, Field(ge=1)] = 100
    replay_depth_max: Annotated[int, Field(ge=1)] = 50
    snapshots_kept: Annotated[int, Field(ge=1)] | None = None
    cache_bytes: Annotated[int, Field(ge=0)] = 16 * MIB
