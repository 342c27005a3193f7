"""Models of a schema, written by `worm schema types`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

import worm


class CustomerAddress(BaseModel):
    model_config = ConfigDict(extra="allow")

    city: str | None = None


class Customer(worm.Document):
    worm_settings = worm.ModelSettings(
        path="#org/@customers/(id:slug)",
        soft_delete=True,
        snapshots=True,
        manifest=worm.ManifestSettings(fields=["name", "status", "score", "seats", "vip", "tags"]),
        indexes={"byStatus": worm.Index("status")},
    )

    name: str
    status: str | None = None
    score: float | None = None
    seats: int | None = None
    vip: bool | None = None
    tags: list[str] | None = None
    address: CustomerAddress | None = None


class OrgSettings(worm.Document):
    worm_settings = worm.ModelSettings(path="#org/@settings", manifest=False)

    title: str | None = None
