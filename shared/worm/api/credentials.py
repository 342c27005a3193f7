"""Identifies the caller: from what Lambda says, or from a token.

| Way | Who | Scopes |
|---|---|---|
| `worm serve` | anyone with the token that it printed | all; with `--read-only`, `read` |
| `iam`: a Function URL | the ARN that AWS has checked the signature of | all |
| `jwt`: an HTTP API with an authorizer | `jwt:<sub>` | those of the claim `scope` (or `scp`): `read`, `worm/write`, … |
| `tokens`: an HTTP API without | `token:<id>`, of a read token (`worm.api.tokens`) | `read`, on the token's models |

Only one way is active at a time, besides read tokens in `worm serve`: a function that expects signatures accepts no
token. The claims that an authorizer has checked (issuer, audience, expiry) are compared again, so that a misconfigured
authorizer opens nothing. With `readonly`, every caller has at most `read`.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from typing import Any, Literal, cast

from worm.api.call import Call, Event
from worm.api.identity import SCOPES, Identity
from worm.api.problems import HttpProblem
from worm.api.tokens import KnownTokens
from worm.clock import Clock
from worm.errors import Invalid, show
from worm.values import dataclass

Way = Literal["iam", "jwt", "tokens"]
WAYS: tuple[Way, ...] = ("iam", "jwt", "tokens")
ALL = frozenset(SCOPES)
READ = frozenset({"read"})
SCOPE_PREFIX = "worm/"
"""The prefix of a resource server: Amazon Cognito has no scopes without one."""
NAME_MAX = 256


def unknown(detail: str, error: str | None = None) -> HttpProblem:
    """401. It does not say what is wrong with a token, because only its owner should know."""
    given = 'Bearer realm="s3worm"' + ("" if error is None else f', error="{error}"')
    hint = "send it as Authorization: Bearer TOKEN"
    return HttpProblem(401, "unauthenticated", detail, hint=hint, headers={"WWW-Authenticate": given})


def bearer_of(headers: Mapping[str, str]) -> str:
    """The token of a call; 401 if there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise unknown("this API needs a token")
    return token.strip()


class LocalCallers:
    """For `worm serve`: its own token allows everything that the server may do; a read token allows reading."""

    def __init__(self, token: str, *, actor: str = "local", is_readonly: bool = False) -> None:
        self._token = token.encode()
        self._identity = Identity(actor, READ if is_readonly else ALL, None, is_local=True)
        self._tokens = KnownTokens()

    def __call__(self, call: Call, event: Event) -> Identity:
        given = bearer_of(call.headers)
        if hmac.compare_digest(given.encode(), self._token):
            return self._identity
        found = self._tokens.identity_of(given, call.session.store, call.session.clock)
        if found is None:
            raise unknown("the token is not valid", "invalid_token")
        return found


@dataclass(frozen=True, slots=True)
class Trust:
    """The credentials that a deployed function accepts. `issuer` and `audience` are for `jwt`."""

    way: Way = "iam"
    issuer: str = ""
    audience: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Trust:
        """From the variables that functions/api.yaml sets."""
        way = environment.get("WORM_API_AUTH") or "iam"
        issuer, audience = environment.get("WORM_API_ISSUER") or "", environment.get("WORM_API_AUDIENCE") or ""
        if way not in WAYS:
            raise Invalid(f"the environment variable WORM_API_AUTH must be iam, jwt or tokens, not {show(way)}")
        if way == "jwt" and not (issuer and audience):
            raise Invalid("WORM_API_AUTH=jwt needs the environment variables WORM_API_ISSUER and WORM_API_AUDIENCE")
        return cls(way, issuer, audience)


class DeployedCallers:
    """For the function `api`."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._tokens = KnownTokens()

    def __call__(self, call: Call, event: Event) -> Identity:
        if self._trust.way == "tokens":
            found = self._tokens.identity_of(bearer_of(call.headers), call.session.store, call.session.clock)
            if found is None:
                raise unknown("the token is not valid", "invalid_token")
        else:
            checked = cast("Mapping[str, Any]", (event.get("requestContext") or {}).get("authorizer") or {})
            if self._trust.way == "iam":
                found = _signed(checked.get("iam"))
            else:
                found = self._claimed(checked.get("jwt"), call.session.clock)
        if call.settings.is_readonly:
            return Identity(found.actor, READ if found.may("read") else frozenset(), found.models)
        return found

    def _claimed(self, jwt: object, clock: Clock) -> Identity:
        claims = jwt.get("claims") if isinstance(jwt, Mapping) else None
        if not isinstance(claims, Mapping):
            raise unknown("this API needs a token")
        audiences = _listed(claims.get("aud")) or _listed(claims.get("client_id"))
        subject = claims.get("sub")
        is_valid = (
            claims.get("iss") == self._trust.issuer
            and self._trust.audience in audiences
            and clock.now().timestamp() < _number(claims.get("exp"))
            and isinstance(subject, str)
            and 0 < len(subject) <= NAME_MAX
        )
        if not is_valid:
            raise unknown("the token is not valid for this API", "invalid_token")
        given = {one.removeprefix(SCOPE_PREFIX) for name in ("scope", "scp") for one in _listed(claims.get(name))}
        return Identity(f"jwt:{subject}", ALL & given)


def _signed(iam: object) -> Identity:
    arn = iam.get("userArn") if isinstance(iam, Mapping) else None
    if not isinstance(arn, str) or not arn.startswith("arn:"):
        raise unknown("this API needs a request signed with AWS IAM credentials")
    return Identity(arn, ALL)


def _listed(claim: object) -> list[str]:
    """A claim with several values: an array, text with spaces, or `[a b]`, as an HTTP API writes arrays."""
    if isinstance(claim, list | tuple):
        return [one for one in claim if isinstance(one, str)]
    if not isinstance(claim, str):
        return []
    inner = claim[1:-1] if claim.startswith("[") and claim.endswith("]") else claim
    return inner.replace(",", " ").split()


def _number(claim: object) -> float:
    try:
        found = float(cast("Any", claim))
    except (TypeError, ValueError):
        return -math.inf
    return found if math.isfinite(found) else -math.inf
