"""A small shop for tests of the API: notes with trash, accounts in a space, drafts without a past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.api.client import Client, memory_session
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.api.identity import EVERYTHING
from worm.clock import VirtualClock
from worm.sdk.database import Worm

TITLE = {"title": {"type": "string"}, "stars": {"type": "number"}}
SCHEMA: dict[str, Any] = {
    "models": {
        "Note": {
            "path": "#org/@notes/(id:string)",
            "oplog": True,
            "softDelete": True,
            "fields": TITLE,
            "manifest": {"enabled": True},
        },
        "Account": {
            "path": "#org/@accounts/(id:string)",
            "oplog": True,
            "softDelete": True,
            "space": "main",
            "fields": {"name": {"type": "string"}, "balance": {"type": "number"}},
            "manifest": {"enabled": True},
        },
        "Draft": {"path": "#org/@drafts/(id:string)", "oplog": False, "fields": TITLE},
    }
}


class Shop:
    """A session, an API on it, and a client."""

    def __init__(self, settings: ApiSettings | None = None, models: frozenset[str] | None = None) -> None:
        self.clock = VirtualClock()
        self.session: Worm = memory_session(SCHEMA, clock=self.clock)
        identity = replace(EVERYTHING, actor="ann", models=models)
        self.api = Api(lambda: self.session, settings, identify=lambda call, event: identity)
        self.client = Client(self.api)
        self.get, self.call = self.client.get, self.client.call

    def tick(self) -> None:
        self.clock.advance(10)
