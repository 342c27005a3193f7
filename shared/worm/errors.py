"""One family of errors. Every class says what happened to the write and carries the fields a caller needs to act.

Kinds for callers: `Invalid` (fix the input), `NotFound`, `Conflict` (re-read and try again), `Fenced` (another writer
took over), `Unavailable` (try later), `CommitStateUnknown` (the write may or may not have landed: look before acting),
`Denied` (credentials or policy), `Corrupt` (stop; stored bytes are wrong), `Expired` (no longer kept).
"""

from __future__ import annotations


class WormError(Exception):
    """Root of all errors of this library. `hint` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.hint = hint

    def __repr__(self) -> str:
        facts = [repr(self.message)]
        facts += [f"{name}={value!r}" for name, value in (("key", self.key), ("hint", self.hint)) if value]
        return f"{type(self).__name__}({', '.join(facts)})"

    def __str__(self) -> str:
        where = f" [{self.key}]" if self.key and self.key not in self.message else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.message}{where}{hint}"


class Invalid(WormError):
    """The input breaks a rule: a document, a schema, an id, a filter. `path` is the JSON path of the mistake."""

    exit_code = 2

    def __init__(
        self, message: str, *, path: str | None = None, key: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{path}: {message}" if path else message, key=key, hint=hint)
        self.path = path


class UniqueViolation(Invalid):
    """Another document has this value of a unique index; nothing was written, unless the hint says so. Reading again
    does not help, so it is no `Conflict`. `holder` is the id of the document that has `value`, the JSON value itself,
    in `field`; `shown` is the value as the message writes it."""

    exit_code = 11

    def __init__(self, field: str, value: object, holder: str, *, shown: str, hint: str | None = None) -> None:
        super().__init__(f"Unique constraint violation: {field}={shown} already exists on entity '{holder}'", hint=hint)
        self.path = field
        self.value = value
        self.holder = holder

    @property
    def field(self) -> str:
        return self.path or ""


class NotFound(WormError):
    """The named thing does not exist."""

    exit_code = 3


class Conflict(WormError):
    """Somebody else changed it first. `expected` and `found` are the two etags."""

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, key=key, hint=hint)
        self.expected = expected
        self.found = found


class Fenced(WormError):
    """A newer writer epoch owns the log; this writer must stop."""

    exit_code = 5


class Unavailable(WormError):
    """The store did not answer within the retry budget; nothing was decided."""

    exit_code = 6


class CommitStateUnknown(Unavailable):
    """A conditional write may or may not have landed and could not be read back. Never clean up after this."""

    exit_code = 7


class Denied(WormError):
    """The store refused the credentials or a policy forbids the call."""

    exit_code = 8


class Corrupt(WormError):
    """Stored bytes are not what this library wrote. Nothing is repaired without being asked."""

    exit_code = 9


class UnsafeStore(WormError):
    """The store ignores or races write conditions, so it cannot keep our promises; opening for writing is refused."""

    exit_code = 10


class Expired(WormError):
    """What was asked for is older than what is kept; newer things are there."""

    exit_code = 12


class SnapshotExpired(Expired):
    """A state of pages that is older than the window for reading the past, and that nothing pins."""

    exit_code = 13


class SchemaDiffers(UserWarning):
    """`connect(schema=…)` found another schema pushed to the place. No error: the given one is used."""
