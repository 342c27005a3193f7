"""How a page store is written and kept. Names and defaults are those of the format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from worm.log.config import MIB, LogConfig

DAY = 24 * 3600.0


class PageConfig(BaseModel):
    """Settings of a page store. They are kept in its root, so that every worker keeps to the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flush_threshold_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 64 * MIB
    flush_interval_seconds: Annotated[float, Field(ge=0, le=DAY)] = 5
    delta_layer_target_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 64 * MIB
    image_layer_target_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 128 * MIB
    compaction_cadence_layers: Annotated[int, Field(ge=1, le=10_000)] = 8
    compaction_cadence_minutes: Annotated[float, Field(ge=0, le=7 * 24 * 60)] = 10
    compaction_max_bytes: Annotated[int, Field(ge=1024)] = 512 * MIB
    pitr_window_seconds: Annotated[float, Field(ge=0)] = 7 * DAY
    gc_min_age_seconds: Annotated[float, Field(gt=0)] = 3600
    block_bytes: Annotated[int, Field(ge=512, le=16 * MIB)] = 64 * 1024
    filter_bits_per_page: Annotated[int, Field(ge=4, le=32)] = 16
    manifest_filter_bytes: Annotated[int, Field(ge=0, le=16 * MIB)] = MIB
    page_max_bytes: Annotated[int, Field(ge=1, le=64 * MIB)] = MIB
    cache_tier: Literal["none", "disk"] = "none"
    cache_memory_bytes: Annotated[int, Field(ge=0)] = 64 * MIB
    cache_disk_bytes: Annotated[int, Field(ge=0)] = 1024 * MIB
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _ages_agree(self) -> PageConfig:
        """Log and layers are collected by one run; the shorter of the two ages would be a trap."""
        if self.log.gc_min_age_seconds != self.gc_min_age_seconds:
            object.__setattr__(self, "log", self.log.model_copy(update={"gc_min_age_seconds": self.gc_min_age_seconds}))
        return self
