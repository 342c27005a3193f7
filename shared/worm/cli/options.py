"""Where a command works: the options that all commands share, and how a command gets what they name.

`--url`, `--endpoint-url` and `--actor` may precede or follow the command; the later one wins, then the environment
variable, then the default. `Target` is the result. A command declares a parameter of type `Target`, or of an alias with
`Shared`: `with_target` adds the options to the command and fills in the parameter.

Every start of `worm` imports this module, so it imports the library only to open something.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from worm.values import dataclass

if TYPE_CHECKING:
    from worm.sdk import Worm
    from worm.store import Store

DEFAULT_URL = "./data"
URL_HELP = "Where the documents are: s3://bucket, s3://bucket/prefix, a directory, or memory://name."
ENDPOINT_HELP = "S3 endpoint, if it is not AWS."
ACTOR_HELP = "The author of writes, for the history."
REASON_HELP = "The reason for the change, kept in the history."
BRANCH_HELP = "Use this branch, for models in a space."


opened_stores: list[Store] = []
"""The stores that the command works on: if it is interrupted, it says whether it has written."""


@dataclass(frozen=True, slots=True)
class Target:
    """The values of the shared options."""

    url: str = DEFAULT_URL
    endpoint_url: str | None = None
    actor: str | None = None
    reason: str | None = None
    branch: str | None = None

    def overridden(
        self,
        url: str | None = None,
        endpoint_url: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
        branch: str | None = None,
    ) -> Target:
        return Target(
            url or self.url,
            endpoint_url or self.endpoint_url,
            actor or self.actor,
            reason or self.reason,
            branch or self.branch,
        )

    def connect(self) -> Worm:
        """A session on the pushed schema."""
        from worm.sdk import connect

        session = connect(
            self.url,
            endpoint_url=self.endpoint_url,
            actor=self.actor,
            reason=self.reason,
            maintenance=None if os.environ.get("WORM_MAINTENANCE") else "inline",  # a command must fold before it ends
        )
        opened_stores.append(session.store)
        return session if self.branch is None else session.branch(self.branch)

    def store(self, *, for_writing: bool = False) -> Store:
        """The bare store; for writing, only if it honors write conditions."""
        from worm.clock import Ids, SystemClock
        from worm.store import ensure_safe, open_store

        clock = SystemClock()
        store = open_store(self.url, endpoint_url=self.endpoint_url, ids=Ids.system(clock), clock=clock)
        opened_stores.append(store)
        if for_writing:
            ensure_safe(store)
        return store


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared options that a command takes; `url` is the help of `--url`. The parameter gets the target, or the
    session that it opens."""

    url: str | None = URL_HELP
    has_actor: bool = False
    is_session: bool = False
    has_branch: bool = False

    def options(self) -> dict[str, Any]:
        """Name and annotation of each, as typer reads them."""
        found: dict[str, Any] = {}
        if self.has_actor:
            found["reason"] = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help=REASON_HELP)]
            found["actor"] = Annotated[str | None, typer.Option("--actor", metavar="NAME", help=ACTOR_HELP)]
        if self.has_branch:
            found["branch"] = Annotated[str | None, typer.Option("--branch", metavar="BRANCH", help=BRANCH_HELP)]
        if self.url is not None:
            found["url"] = Annotated[str | None, typer.Option("--url", metavar="URL", help=self.url)]
        found["endpoint_url"] = Annotated[str | None, typer.Option("--endpoint-url", metavar="URL", help=ENDPOINT_HELP)]
        return found


EndpointTarget = Annotated[Target, Shared(url=None)]
AuthorTarget = Annotated[Target, Shared(has_actor=True)]
AuthorTargetOnBranch = Annotated[Target, Shared(has_actor=True, has_branch=True)]
TargetOnBranch = Annotated[Target, Shared(has_branch=True)]
Session = Annotated["Worm", Shared(is_session=True)]
SessionOnBranch = Annotated["Worm", Shared(is_session=True, has_branch=True)]
AuthorSessionOnBranch = Annotated["Worm", Shared(has_actor=True, is_session=True, has_branch=True)]
AuthorSession = Annotated["Worm", Shared(has_actor=True, is_session=True)]


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Around an import that needs an extra: `NotFound` where it is not installed."""
    from worm.errors import NotFound

    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "worm").partition(".")[0]
        if package == "worm":
            raise
        missing = f"this command needs the package {package}, which is not installed"
        raise NotFound(missing, hint=f"pip install 's3worm[{name}]'") from error


def with_target(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer sees it: with the shared options in place of the parameter that needs them."""
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    asked = {name: shared for name, one in parameters.items() if (shared := _shared(one.annotation)) is not None}
    if not asked:
        return function
    [(asking, shared)] = asked.items()
    options, keeps_context = shared.options(), "context" in parameters

    def command(context: typer.Context, **given: Any) -> None:
        target = (context.find_object(Target) or Target()).overridden(**{name: given.pop(name) for name in options})
        given |= {asking: target.connect() if shared.is_session else target}
        function(**given, **({"context": context} if keeps_context else {}))

    del parameters[asking]
    for name, annotation in {"context": typer.Context, **options}.items():
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    in_any_order = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
    command.__name__, command.__doc__, command.__annotations__ = function.__name__, function.__doc__, {}
    command.__signature__ = inspect.Signature(in_any_order)  # type: ignore[attr-defined]  # inspect reads it
    return command


def _shared(annotation: object) -> Shared | None:
    if annotation is Target:
        return Shared()
    return next((one for one in get_args(annotation) if isinstance(one, Shared)), None)
