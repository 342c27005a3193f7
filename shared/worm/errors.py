"""One family of errors. Every class says what happened to the write and carries the fields a caller needs to act.

Kinds for callers: `Invalid` (fix the input), `NotFound`, `Conflict` (re-read and try again), `Fenced` (another writer
took over), `Unavailable` (try later), `CommitStateUnknown` (the write may or may not have landed: look before acting),
`Denied` (credentials or policy), `Corrupt` (stop; stored bytes are wrong), `Expired` (no longer kept).

Whatever a caller passes or a bucket holds may be in a message: `shown` makes any value short text, and no message is
longer than `MESSAGE_MAX`. Attributes keep the values themselves.

A hint says what to do. Upkeep is named by its command (`worm repair`), which programs can run too. What a program does
by a call, a user by a command and a caller of the HTTP API by a request is a `Hint`, which has words for all of them.

Examples:
    >>> worm.errors.Conflict is worm.Conflict
    True
"""

from __future__ import annotations

from typing import Self

SHOWN_MAX = 80
MESSAGE_MAX = 4000


def shown(value: object) -> str:
    """A value as messages show it: its `repr`, shortened. A value without one, such as an integer of too many digits,
    is shown by its type."""
    try:
        if isinstance(value, str) and len(value) > SHOWN_MAX:
            return f"{value[:SHOWN_MAX]!r}… ({len(value):,} characters)"
        return shortened(repr(value))
    except Exception:  # noqa: BLE001 - the value is the caller's: its `repr` may raise anything
        return f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """Text of a value as messages show it: of a long one the beginning, and how long it is."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)"


def _bounded(text: str) -> str:
    """A message, without its middle where it is far too long."""
    if len(text) <= MESSAGE_MAX:
        return text
    return f"{text[: MESSAGE_MAX - 500]} … ({len(text):,} characters) … {text[-400:]}"


class Hint(str):
    """What to do, in the words of a program; `shell` says the same for somebody who uses the `worm` command, `http` for
    a caller of the HTTP API."""

    shell: str
    http: str

    def __new__(cls, text: str, shell: str = "", http: str = "") -> Self:
        made = super().__new__(cls, text)
        made.shell = shell or text
        made.http = http or text
        return made


class WormError(Exception):
    """Root of all errors of this library. `hint` says what to do about it; `is_stored`, whether the change that was
    asked for is stored all the same; `request_id`, which request S3 refused.

    Examples:
        >>> try:
        ...     customers.get("nobody")
        ... except worm.WormError as error:
        ...     print(type(error).__name__, error.exit_code)
        NotFound 3
    """

    exit_code = 1
    request_id: str | None = None
    """S3's name for the request that failed, where it told: AWS support and access logs know a request by it."""
    explained_as = ""
    """The class that the documentation explains instead, where a caller need not tell the two apart."""
    is_stored = False
    """True: the change that was asked for is stored, and what failed is what follows it: history, table, claims."""

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        self.message = _bounded(message)
        super().__init__(self.message)
        self.key = key
        self.hint = hint

    def __repr__(self) -> str:
        facts = [repr(self.message)]
        facts += [f"{name}={_bounded(value)!r}" for name, value in (("key", self.key), ("hint", self.hint)) if value]
        return f"{type(self).__name__}({', '.join(facts)})"

    def __str__(self) -> str:
        return self._said(self.hint)

    @property
    def help_url(self) -> str:
        """The page that explains this kind of error: its causes, and what to do."""
        from worm.version import DOCS_URL  # importing an error imports nothing else

        return f"{DOCS_URL}reference/errors.html#{(self.explained_as or type(self).__name__).lower()}"

    def for_shell(self) -> str:
        """The same, with the hint for somebody who uses the `worm` command."""
        return self._said(self.hint.shell if isinstance(self.hint, Hint) else self.hint)

    def _said(self, hint: str | None) -> str:
        where = f" [{_bounded(self.key)}]" if self.key and self.key not in self.message else ""
        return f"{self.message}{where}" + (f" ({_bounded(hint)})" if hint else "")


class Invalid(WormError):
    """The input breaks a rule: a document, a schema, an id, a filter. `path` is the JSON path of the mistake.

    Examples:
        >>> try:
        ...     customers.patch("acme", {"visits": "many"})
        ... except worm.Invalid as error:
        ...     print(error.path)
        visits
    """

    exit_code = 2
    is_of_stored = False
    """True: the mistake is in what somebody stored, not in what the caller gave."""
    mistakes: tuple[tuple[str, str], ...] = ()
    """Of a document or a schema: the path and the text of each mistake."""

    def __init__(
        self, message: str, *, path: str | None = None, key: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{path}: {message}" if path else message, key=key, hint=hint)
        self.path = path


class UniqueViolation(Invalid):
    """Another document has this value of a unique index; nothing was written, unless the hint says so. Reading again
    does not help, so it is no `Conflict`. `holder` is the id of the document that has `value`, the JSON value itself,
    in `field`; `shown` is the value as the message writes it.

    Examples:
        >>> try:
        ...     customers.insert(Customer(name="Other", email="info@acme.example"))
        ... except worm.UniqueViolation as error:
        ...     print(error.field, error.holder)
        email acme
    """

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
    """The named thing does not exist.

    Examples:
        >>> try:
        ...     customers.get("nobody")
        ... except worm.NotFound as error:
        ...     print(error.key)
        customers/nobody/data.json
    """

    exit_code = 3


class Conflict(WormError):
    """Somebody else changed it first. `expected` and `found` are the two etags.

    Examples:
        >>> mine, theirs = customers.get("acme"), customers.get("acme")
        >>> theirs.visits = 1
        >>> _ = customers.save(theirs)
        >>> mine.visits = 2
        >>> try:
        ...     customers.save(mine)
        ... except worm.Conflict:
        ...     mine = customers.get("acme")  # start again from what is there now
        >>> mine.visits
        1
    """

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
    """A newer writer epoch owns the log; this writer must stop.

    Examples:
        >>> log = worm.open_log("memory://fenced", "orders")
        >>> _ = log.append([{"op": "mine"}])
        >>> with worm.open_log("memory://fenced", "orders") as newer:
        ...     _ = newer.append([{"op": "theirs"}])
        >>> try:
        ...     log.append([{"op": "late"}])
        ... except worm.Fenced:
        ...     print("another writer took over")
        another writer took over
    """

    exit_code = 5


class Unavailable(WormError):
    """The store did not answer within the retry budget; nothing was decided.

    Examples:
        >>> for attempt in range(3):
        ...     try:
        ...         acme = customers.get("acme")
        ...         break
        ...     except worm.Unavailable:
        ...         continue  # nothing was decided: try again
        >>> acme.name
        'Acme'
    """

    exit_code = 6


class CommitStateUnknown(Unavailable):
    """A conditional write may or may not have landed and could not be read back. Never clean up after this.

    Examples:
        >>> try:
        ...     customers.patch("acme", {"visits": 1}).visits
        ... except worm.CommitStateUnknown:
        ...     customers.get("acme").visits  # look before you act
        1
    """

    exit_code = 7


class Denied(WormError):
    """The store refused the credentials or a policy forbids the call.

    Examples:
        >>> try:
        ...     acme = customers.get("acme")
        ... except worm.Denied as error:
        ...     print("check credentials and policies:", error.request_id)
    """

    exit_code = 8


class Corrupt(WormError):
    """Stored bytes are not what this library wrote. Nothing is repaired without being asked.

    Examples:
        >>> try:
        ...     entries = customers.get_history("acme")
        ... except worm.Corrupt as error:
        ...     print("run worm verify:", error)
    """

    exit_code = 9


class UnsafeStore(WormError):
    """The store ignores or races write conditions, so it cannot keep our promises; opening for writing is refused.

    Examples:
        >>> try:
        ...     db.ensure_safe_store()
        ... except worm.UnsafeStore:
        ...     print("choose a store with conditional writes")
    """

    exit_code = 10


class Expired(WormError):
    """What was asked for is older than what is kept; newer things are there.

    Examples:
        >>> try:
        ...     entries = customers.get_history("acme")
        ... except worm.Expired as error:
        ...     print(f"no longer kept: {error}")
    """

    exit_code = 12


class SnapshotExpired(Expired):
    """A state of pages that is older than the window for reading the past, and that nothing pins.

    Examples:
        >>> with worm.open_pages("memory://past", "main") as pages:
        ...     lsn = pages.write({"a": b"one"})
        ...     try:
        ...         pages.get_page("a", lsn)
        ...     except worm.SnapshotExpired:
        ...         print("older than the window for reading the past")
        b'one'
    """

    exit_code = 13


class SchemaDiffers(UserWarning):
    """`connect(schema=…)` found another schema pushed to the place. No error: the given one is used.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", worm.SchemaDiffers)
        ...     other = worm.connect("./data", models=[Customer])
        >>> [one.category.__name__ for one in caught]
        ['SchemaDiffers']
    """


class EditKept(UserWarning):
    """Opening a directory after a power cut found documents that somebody edited. No error: the edits stay, and what
    was stored last is set aside.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", worm.EditKept)
        ...     reopened = worm.connect("./data")
        >>> [str(one.message) for one in caught]
        []
    """
