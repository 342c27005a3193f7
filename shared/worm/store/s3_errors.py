"""What an error answer of S3 means, independent of the client library.

The errors of both clients become a `Failure`: HTTP status, S3's error code, a short reason, and S3's request id.
obstore has no status field, so we parse it from the text, which is stable within the pinned minor version. A text
without a status means that there was no answer. The text contains the body of the answer, so the request id is there
too, except after a HEAD, whose answer has no body.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worm.errors import Denied, Invalid, NotFound, UnsafeStore, WormError
from worm.store.base import Attempt, AttemptOutcome, Condition, IfMatch

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_REQUEST_ID = re.compile(r"<RequestId>([^<]{1,200})</RequestId>")
_DENIED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_PASSING_CODES = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "OperationAborted"}
_THROTTLING_CODES = {"SlowDown", "RequestLimitExceeded"}


@dataclass(frozen=True, slots=True)
class Failure:
    """One answer that was not a success. `status` is None when there was no answer."""

    status: int | None
    code: str
    reason: str
    request_id: str | None = None

    @property
    def is_missing_bucket(self) -> bool:
        return self.status == 404 and self.code == "NoSuchBucket"

    @property
    def is_absent(self) -> bool:
        return self.status == 404 and not self.is_missing_bucket

    @property
    def is_past_end(self) -> bool:
        """Whether the range begins at or after the end of the object."""
        return self.status == 416

    @property
    def is_missing_version(self) -> bool:
        """Whether the version id is malformed (400) or names a delete marker (405)."""
        return self.status in (400, 405) and not self.is_denied and not self.is_passing

    @property
    def is_denied(self) -> bool:
        return self.status in (401, 403) or self.code in _DENIED_CODES

    @property
    def may_be_the_tag(self) -> bool:
        """Whether a tagged write may have been refused for its tag: a permission is missing, or the store does not know
        tags (Cloudflare R2 answers 501; Backblaze B2, 400 with the code `InvalidArgument`)."""
        is_forbidden = self.status == 403 and self.code in ("AccessDenied", "")
        return is_forbidden or self.status == 501 or (self.status == 400 and self.code == "InvalidArgument")

    @property
    def is_passing(self) -> bool:
        """Whether a retry may help: no answer, overload, or a server error."""
        if self.status is None or self.status in (408, 429) or self.code in _PASSING_CODES:
            return True
        return self.status >= 500 and self.status != 501

    @property
    def is_throttled(self) -> bool:
        """Whether the store gets too many requests. The answer to a HEAD has no code, so any 503 counts."""
        return self.status in (429, 503) or self.code in _THROTTLING_CODES


class Failed(Exception):
    """Inside this room only: a client's request did not succeed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class TryAgain(Exception):
    """Inside this room only: a request that may be repeated failed."""

    def __init__(self, reason: str, request_id: str | None = None, *, is_throttled: bool = False) -> None:
        super().__init__(reason)
        self.request_id = request_id
        self.is_throttled = is_throttled

    @classmethod
    def after(cls, failure: Failure) -> TryAgain:
        return cls(failure.reason, failure.request_id, is_throttled=failure.is_throttled)


def failure_of_text(text: str) -> Failure:
    """From the text of an obstore error."""
    status = _STATUS.search(text)
    code = _CODE.search(text)
    first_line = text.split("\n", 1)[0]
    if status is None:
        return Failure(None, "", first_line)
    name, request_id = code.group(1) if code else "", _REQUEST_ID.search(text)
    reason = f"{status.group(1)} {name}".strip()
    return Failure(int(status.group(1)), name, reason, request_id.group(1) if request_id else None)


def failure_of_status(status: int, code: str, request_id: str | None = None) -> Failure:
    """From the fields of a botocore error."""
    return Failure(status, code, f"{status} {code}".strip(), request_id)


def absent_or_raise(failure: Failure, key: str, version_id: str | None = None) -> None:
    """Returns for an absent key or version; raises `TryAgain` for a transient failure and our own error for a permanent
    one."""
    if failure.is_absent or (version_id is not None and failure.is_missing_version):
        return
    if failure.is_passing:
        raise TryAgain.after(failure)
    raise lasting_error(failure, key)


def lasting_error(failure: Failure, key: str) -> WormError:
    """The error for a failure that a retry would only repeat."""
    error = _lasting(failure, key)
    error.request_id = failure.request_id
    return error


def _lasting(failure: Failure, key: str) -> WormError:
    if failure.is_missing_bucket:
        return NotFound("the bucket does not exist", key=key)
    if failure.is_denied:
        return Denied(f"the store refused the request: {failure.reason}", key=key)
    if failure.status == 501:
        return UnsafeStore(f"the store does not implement this request: {failure.reason}", key=key)
    return Invalid(f"the store rejected the request: {failure.reason}", key=key)


def attempt_of(failure: Failure, key: str, condition: Condition) -> Attempt:
    """The outcome of one conditional write that did not succeed."""
    outcome = _outcome(failure, condition)
    if outcome is None:
        raise lasting_error(failure, key)
    is_throttled = outcome is AttemptOutcome.UNKNOWN and failure.is_throttled
    return Attempt(outcome, reason=failure.reason, request_id=failure.request_id, is_throttled=is_throttled)


def _outcome(failure: Failure, condition: Condition) -> AttemptOutcome | None:
    if failure.status == 412:
        return AttemptOutcome.REFUSED
    if failure.status == 409:
        return AttemptOutcome.CONTENDED
    if failure.is_absent and isinstance(condition, IfMatch):
        return AttemptOutcome.GONE
    if failure.is_denied:
        return AttemptOutcome.DENIED
    return AttemptOutcome.UNKNOWN if failure.is_passing else None
