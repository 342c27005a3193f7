"""Where a command works: the options that every command shares, and opening what they name.

An option may stand before or after the command's name; the later one wins, then the environment variable, then the
default. `Target` is what they come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Invalid
from worm.model import Worm, connect
from worm.store.base import Store
from worm.store.open import open_store
from worm.store.probe import ensure_safe

DEFAULT_URL = "./data"

URL_HELP = "Where the documents are: s3://bucket, s3://bucket/prefix, a directory, or memory://name."
ENDPOINT_HELP = "S3 endpoint other than AWS's own."
ACTOR_HELP = "Who is named as the author of writes."

Url = Annotated[str | None, typer.Option("--url", metavar="URL", help=URL_HELP)]
EndpointUrl = Annotated[str | None, typer.Option("--endpoint-url", metavar="URL", help=ENDPOINT_HELP)]
Actor = Annotated[str | None, typer.Option("--actor", metavar="NAME", help=ACTOR_HELP)]


@dataclass(frozen=True, slots=True)
class Target:
    """What the shared options come to."""

    url: str = DEFAULT_URL
    endpoint_url: str | None = None
    actor: str | None = None

    def overridden(self, url: str | None, endpoint_url: str | None, actor: str | None = None) -> Target:
        return Target(url or self.url, endpoint_url or self.endpoint_url, actor or self.actor)

    def connect(self) -> Worm:
        """A session on the pushed schema."""
        return connect(self.url, endpoint_url=self.endpoint_url, actor=self.actor)

    def store(self, *, for_writing: bool = False) -> Store:
        """The bare store; for writing only if it keeps write conditions."""
        clock: Clock = SystemClock()
        store = open_store(self.url, endpoint_url=self.endpoint_url, ids=Ids.system(clock), clock=clock)
        if for_writing:
            ensure_safe(store)
        return store


def target(
    context: typer.Context, url: str | None = None, endpoint_url: str | None = None, actor: str | None = None
) -> Target:
    """The command's target: its own options over those before the command's name."""
    outer = context.find_object(Target) or Target()
    return outer.overridden(url, endpoint_url, actor)


def chosen_models(session: Worm, names: list[str] | None) -> list[str]:
    """The named models, each checked, or all of the schema."""
    for name in names or []:
        session.schema.model(name)
    if names and len(set(names)) != len(names):
        raise Invalid("a model is named twice")
    return list(names or session.schema.models)
