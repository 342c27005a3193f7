"""Read tokens: for people who may see some models for some time, and have no account.

A token is `worm_<id>_<secret>`. The bucket keeps a record of it under `.worm.api/tokens/<id>.json`, with the SHA-256 of
the secret, so reading the bucket does not reveal the token. The secret has 256 random bits, so a slower hash is not
needed. A token expires, can be revoked, and never allows more than reading.

A process reads a record once in `KNOWN_SECONDS`: for that long a revoked token may still be accepted.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

from worm import forks
from worm.api.identity import Identity
from worm.clock import Clock, Ids, iso_seconds, moment_of
from worm.errors import Conflict, Corrupt, Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue, dumps, loads_own, shapes
from worm.store import Lost, Store
from worm.values import dataclass

PREFIX = ".worm.api/tokens/"
READ = frozenset({"read"})
DAYS = 30
DAYS_MAX = 366
NOTE_MAX = 200
KNOWN_SECONDS = 30.0
KNOWN_MAX = 1000
RECORD_BYTES_MAX = 64 * 1024
_ID = re.compile(r"[0-9a-z]{26}")
_TEXT = re.compile(r"worm_([0-9a-z]{26})_([0-9a-f]{64})")
_DIGEST = shapes.text_that("a SHA-256 in hexadecimal digits", re.compile(r"[0-9a-f]{64}").fullmatch)
RECORD = shapes.record(
    "the record of a token",
    {
        "sha256": _DIGEST,
        "models": shapes.nullable(shapes.list_of(shapes.TEXT)),
        "createdAt": shapes.TIME,
        "expiresAt": shapes.TIME,
    },
    {
        "createdBy": shapes.nullable(shapes.TEXT),
        "note": shapes.nullable(shapes.TEXT),
        "revokedAt": shapes.nullable(shapes.TIME),
    },
)


@dataclass(frozen=True, slots=True)
class Token:
    """The record of a token. `models` None: all of them."""

    id: str
    digest: str
    models: frozenset[str] | None
    created_at: datetime
    expires_at: datetime
    created_by: str | None = None
    note: str | None = None
    revoked_at: datetime | None = None

    @property
    def key(self) -> str:
        return key_of(self.id)

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if now < self.expires_at else "expired"

    def admits(self, secret: str, now: datetime) -> bool:
        """Takes the same time for any wrong secret."""
        fits = hmac.compare_digest(_digest(secret), self.digest)
        return fits and self.state(now) == "active"

    @property
    def identity(self) -> Identity:
        return Identity(f"token:{self.id}", READ, self.models)

    def to_bytes(self) -> bytes:
        shape: JsonObject = {
            "version": 1,
            "sha256": self.digest,
            "scopes": ["read"],
            "models": None if self.models is None else list[JsonValue](sorted(self.models)),
            "createdAt": iso_seconds(self.created_at),
            "createdBy": self.created_by,
            "expiresAt": iso_seconds(self.expires_at),
            "note": self.note,
            "revokedAt": None if self.revoked_at is None else iso_seconds(self.revoked_at),
        }
        return dumps(shape)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Token:
        """`Corrupt` for anything else."""
        shape = loads_own(body, key)
        shapes.check(shape, RECORD, key, hint="revoke the token and create a new one")
        models = cast("list[str] | None", shape["models"])
        revoked = cast("str | None", shape.get("revokedAt"))
        return cls(
            id=id_of(key),
            digest=cast(str, shape["sha256"]),
            models=None if models is None else frozenset(models),
            created_at=cast(datetime, moment_of(cast(str, shape["createdAt"]))),
            expires_at=cast(datetime, moment_of(cast(str, shape["expiresAt"]))),
            created_by=cast("str | None", shape.get("createdBy")),
            note=cast("str | None", shape.get("note")),
            revoked_at=None if revoked is None else moment_of(revoked),
        )


def key_of(id: str) -> str:
    return f"{PREFIX}{id}.json"


def id_of(key: str) -> str:
    return key.removeprefix(PREFIX).removesuffix(".json")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# Creating and revoking


def create_token(
    store: Store,
    ids: Ids,
    *,
    days: int = DAYS,
    models: Sequence[str] | None = None,
    note: str | None = None,
    actor: str | None = None,
) -> tuple[Token, str]:
    """The record, and the text of the token, which cannot be shown again."""
    if not 1 <= days <= DAYS_MAX:
        raise Invalid(f"must be between 1 and {DAYS_MAX}, not {days}", path="days")
    if note is not None and len(note) > NOTE_MAX:
        raise Invalid(f"has {len(note)} characters, and the limit is {NOTE_MAX}", path="note")
    now, secret = ids.clock.now(), f"{ids.rng.getrandbits(256):064x}"
    token = Token(
        id=ids.ulid().lower(),
        digest=_digest(secret),
        models=None if models is None else frozenset(models),
        created_at=now,
        expires_at=now + timedelta(days=days),
        created_by=actor,
        note=note,
    )
    if isinstance(store.put_if_absent(token.key, token.to_bytes()), Lost):
        raise Conflict(f"the token {token.id} already exists", key=token.key, hint="try again")
    return token, f"worm_{token.id}_{secret}"


def list_tokens(store: Store) -> list[Token]:
    """All tokens, including revoked and expired ones, oldest first."""
    found = []
    for one in store.list(PREFIX):
        stored = store.get(one.key, max_bytes=RECORD_BYTES_MAX) if _ID.fullmatch(id_of(one.key)) else None
        if stored is not None:
            found.append(Token.from_bytes(stored.body, one.key))
    return sorted(found, key=lambda one: one.id)


def find_token(store: Store, id: str) -> Token | None:
    """None if there is no such token."""
    if not _ID.fullmatch(id):
        return None
    stored = store.get(key_of(id), max_bytes=RECORD_BYTES_MAX)
    return None if stored is None else Token.from_bytes(stored.body, key_of(id))


def revoke_token(store: Store, id: str, clock: Clock) -> Token:
    """From now on the token is refused. The record stays, to show later whose token it was."""
    found = find_token(store, id)
    if found is None:
        raise NotFound(f"the token {show(id)} does not exist", hint="`worm token list` shows them")
    if found.revoked_at is not None:
        return found
    revoked = Token(
        id=found.id,
        digest=found.digest,
        models=found.models,
        created_at=found.created_at,
        expires_at=found.expires_at,
        created_by=found.created_by,
        note=found.note,
        revoked_at=clock.now(),
    )
    store.put(revoked.key, revoked.to_bytes())
    return revoked


# Using a token


class KnownTokens:
    """The tokens that a process has read, for a short time."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._known: dict[str, tuple[float, Token]] = {}

    def identity_of(self, text: str, store: Store, clock: Clock) -> Identity | None:
        """The identity of this token; None if it is not valid, for any reason."""
        parts = _TEXT.fullmatch(text)
        if parts is None:
            return None
        token = self._token(parts[1], store, clock)
        return token.identity if token is not None and token.admits(parts[2], clock.now()) else None

    def _token(self, id: str, store: Store, clock: Clock) -> Token | None:
        now = clock.monotonic()
        with self._lock:
            read_at, known = self._known.get(id, (0.0, None))
        if known is not None and now - read_at < KNOWN_SECONDS:
            return known
        try:
            found = find_token(store, id)
        except Corrupt:  # `worm token list` shows it to its owner; a stranger learns nothing
            found = None
        with self._lock:
            self._known.pop(id, None)
            if found is not None:
                self._known[id] = (now, found)
            while len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return found
