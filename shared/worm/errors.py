"""All errors of this library. Each class says what happened to the write and has the fields that a caller needs.

Kinds for callers: `Invalid` (fix the input), `NotFound`, `Conflict` (re-read and try again), `Fenced` (another writer
took over), `Unavailable` (try later), `CommitStateUnknown` (the write may or may not have landed: look before acting),
`Denied` (credentials or policy), `Corrupt` (stop; stored bytes are wrong), `Expired` (no longer kept).

Messages quote values of callers and of the bucket: `show` turns any value into short text, and no message is longer
than `MESSAGE_MAX`. Attributes keep the values themselves.

A hint says what to do. Maintenance is named by its command (`worm repair`), which programs can run too. Where the
answer differs between a Python program, the command line and the HTTP API, the hint is a `Hint` with a text for each.

Examples:
    >>> worm.errors.Conflict is worm.Conflict
    True
"""

from __future__ import annotations

from typing import Self

SHOWN_MAX = 80
MESSAGE_MAX = 4000


def show(value: object) -> str:
    """A value as messages show it: its `repr`, shortened. A value without a `repr`, such as an integer with too many
    digits, is shown by its type."""
    try:
        if isinstance(value, str) and len(value) > SHOWN_MAX:
            return f"{value[:SHOWN_MAX]!r}… ({len(value):,} characters)"
        return shorten(repr(value))
    except Exception:  # noqa: BLE001 - the value is the caller's: its `repr` may raise anything
        return f"a value of type {type(value).__name__}"


def shorten(text: str) -> str:
    """A text as messages show it: a long one is cut, with its length."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)"


def _bounded(text: str) -> str:
    """The message, without its middle if it is far too long."""
    if len(text) <= MESSAGE_MAX:
        return text
    return f"{text[: MESSAGE_MAX - 500]} … ({len(text):,} characters) … {text[-400:]}"


class Hint(str):
    """What to do, for a Python program. `shell` says the same for a user of the `worm` command, `http` for a caller of
    the HTTP API."""

    shell: str
    http: str

    def __new__(cls, text: str, shell: str = "", http: str = "") -> Self:
        made = super().__new__(cls, text)
        made.shell = shell or text
        made.http = http or text
        return made


class WormError(Exception):
    """Root of all errors of this library. `hint` says what to do about it. `is_stored` is True if the requested change
    is stored despite the error. `request_id` is the request that S3 refused.

    Examples:
        >>> try:
        ...     customers.get("nobody")
        ... except worm.WormError as error:
        ...     print(type(error).__name__, error.exit_code)
        NotFound 3
    """

    exit_code = 1
    request_id: str | None = None
    """S3's id of the failed request, if S3 sent one. AWS support and access logs identify a request by it."""
    explained_as = ""
    """The class that the documentation explains instead, if callers need not distinguish the two."""
    is_stored = False
    """True: the requested change is stored, and a later step failed: history, table or claims."""

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
        """The same message, with the hint for a user of the `worm` command."""
        return self._said(self.hint.shell if isinstance(self.hint, Hint) else self.hint)

    def _said(self, hint: str | None) -> str:
        where = f" [{_bounded(self.key)}]" if self.key and self.key not in self.message else ""
        return f"{self.message}{where}" + (f" ({_bounded(hint)})" if hint else "")


class Invalid(WormError):
    """The input breaks a rule: a document, a schema, an id, a filter. `path` is the JSON path of the value that breaks
    it.

    Examples:
        >>> try:
        ...     customers.patch("acme", {"visits": "many"})
        ... except worm.Invalid as error:
        ...     print(error.path)
        visits
    """

    exit_code = 2
    is_of_stored = False
    """True: the mistake is in a stored document or schema, not in what the caller passed."""
    mistakes: tuple[tuple[str, str], ...] = ()
    """For a document or a schema: path and text of each mistake."""

    def __init__(
        self, message: str, *, path: str | None = None, key: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{path}: {message}" if path else message, key=key, hint=hint)
        self.path = path


class UniqueViolation(Invalid):
    """Another document already has this value of a unique index. Nothing was written, unless the hint says otherwise.
    Retrying does not help, so this is not a `Conflict`. `holder` is the id of the document that has `value` (the JSON
    value itself) in `field`; `show` is the value as the message shows it.

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

    @classmethod
    def past_the_end(cls, what: str, at: int, newest: int, *, key: str | None = None) -> NotFound:
        """The error for a position after the newest one."""
        return cls(f"{what} {at} does not exist yet; the newest is {newest}", key=key)


class Conflict(WormError):
    """Another writer changed it first. `expected` and `found` are the two etags.

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
    """A conditional write may or may not have landed, and reading it back failed. Never clean up after this error.

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
    """Stored bytes are not what this library wrote. Nothing is repaired until you ask for it.

    Examples:
        >>> try:
        ...     entries = customers.get_history("acme")
        ... except worm.Corrupt as error:
        ...     print("run worm verify:", error)
    """

    exit_code = 9


class UnsafeStore(WormError):
    """The store ignores write conditions or races them, so it cannot keep our guarantees. Opening it for writing is
    refused.

    Examples:
        >>> try:
        ...     db.ensure_safe_store()
        ... except worm.UnsafeStore:
        ...     print("choose a store with conditional writes")
    """

    exit_code = 10


class Expired(WormError):
    """The requested state is older than what is kept. Newer states can still be read.

    Examples:
        >>> try:
        ...     entries = customers.get_history("acme")
        ... except worm.Expired as error:
        ...     print(f"no longer kept: {error}")
    """

    exit_code = 12


class SnapshotExpired(Expired):
    """A state of a page store that is older than the retention window and not pinned.

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

    @classmethod
    def before_the_kept(
        cls, what: str, at: object, oldest: object, *, key: str | None = None, hint: str | None = None
    ) -> SnapshotExpired:
        """The error for a position before the oldest one that is kept."""
        return cls(f"{what} {at} is older than what is kept; the oldest is {oldest}", key=key, hint=hint)


class SchemaDiffers(UserWarning):
    """`connect(schema=…)` found a different schema pushed at this location. This is a warning: the schema that you
    passed is used.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", worm.SchemaDiffers)
        ...     other = worm.connect("./data", models=[Customer])
        >>> [one.category.__name__ for one in caught]
        ['SchemaDiffers']
    """


class EditKept(UserWarning):
    """After a power cut, a directory had documents that somebody had edited. This is a warning: the edits stay, and the
    version that was stored last is set aside.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always", worm.EditKept)
        ...     reopened = worm.connect("./data")
        >>> [str(one.message) for one in caught]
        []
    """
