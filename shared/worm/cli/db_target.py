"""What a `worm db` command works on: a database, one of its branches, an LSN or a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from pydantic import ValidationError

from worm.cli.options import target as shared_target
from worm.clock import moment_of
from worm.codec.strict_json import JsonObject, loads
from worm.errors import Invalid
from worm.pages.config import PageConfig
from worm.pages.past import Past
from worm.store.base import Store

Db = Annotated[str, typer.Argument(metavar="DB", help="The database's id.")]
BranchName = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch.")]
At = Annotated[str | None, typer.Option("--at", metavar="LSN|TIME", help="A past state: an LSN or an ISO 8601 time.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, as pitr_window_seconds=86400; several are allowed."),
]


@dataclass(frozen=True, slots=True)
class DbTarget:
    """A store and the id of a database in it."""

    store: Store
    db_id: str

    @classmethod
    def of(
        cls, context: typer.Context, db_id: str, url: str | None, endpoint_url: str | None, *, for_writing: bool = False
    ) -> DbTarget:
        return cls(shared_target(context, url, endpoint_url).store(for_writing=for_writing), db_id)

    @property
    def past(self) -> Past:
        return Past(self.store, self.db_id)

    def lsn(self, at: str | None, branch: str) -> int | None:
        """The LSN that `--at` means; None where it is not given."""
        if at is None:
            return None
        if at.isascii() and at.isdecimal():
            return int(at)
        moment = moment_of(at)
        if moment is None:
            raise Invalid(f"--at {at!r} is neither an LSN nor a time", hint="as 1204 or 2026-02-24T12:00:00Z")
        return self.past.lsn_at(moment, branch)


def configured(before: PageConfig, settings: list[str] | None) -> PageConfig:
    """The configuration with `--set` options; those of the log are `log.<name>`."""
    shape: JsonObject = before.model_dump(mode="json")
    for text in settings or []:
        name, equals, value = text.partition("=")
        *outer, last = name.split(".")
        inner = shape.get("log") if outer == ["log"] else shape if not outer else None
        if not equals or not isinstance(inner, dict) or last not in inner or last == "log":
            known = ", ".join(sorted({*shape, *(f"log.{one}" for one in before.log.model_dump())} - {"log"}))
            raise Invalid(f"--set {text!r} names no setting", hint=f"NAME=VALUE with one of: {known}")
        inner[last] = value if name == "cache_tier" else loads(value.encode())
    try:
        return PageConfig.model_validate(shape)
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
