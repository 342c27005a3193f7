"""Who may what: by IAM, by JWT, by read token, and in `worm serve`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.api.client import event, memory_session, reply
from worm.api.app import ROUTES, Api
from worm.api.call import ApiSettings, Call
from worm.api.credentials import DeployedCallers, LocalCallers, Trust
from worm.api.identity import SCOPES, Identity
from worm.api.routes import Parameter, Route
from worm.api.tokens import KNOWN_SECONDS, create_token, find_token, key_of, list_tokens, revoke_token
from worm.clock import Ids, VirtualClock
from worm.errors import Corrupt, Invalid, NotFound
from worm.formats.strict_json import JsonObject
from worm.sdk.database import Worm

SCHEMA = {
    "models": {
        name: {"path": f"#org/@{name.lower()}s/(id:string)", "fields": {"title": {"type": "string"}}}
        for name in ("Note", "Secret")
    }
}
ISSUER, AUDIENCE = "https://issuer.example/pool", "app-1"
ARN = "arn:aws:sts::111122223333:assumed-role/Editor/ann"
OPEN = {"/", "/console", "/console/", "/console/{rest}", "/openapi.json"}
"""What needs no credentials: files that are the same for everybody."""


def _shown(call: Call) -> JsonObject:
    return {"actor": call.identity.actor}


PROBES = tuple(
    Route("POST" if scope != "read" else "GET", f"/probe/{scope}", _shown, scope, scope=scope, models="filtered")
    for scope in ("read", "write", "admin")
)
NAMED = Route("GET", "/probe/models/{model}", _shown, "named")
ASKED = Route("GET", "/probe/asked", _shown, "asked", parameters=(Parameter("model", ""),), models="filtered")
WHOLE = Route("GET", "/probe/whole", _shown, "whole")


class Place:
    """An API on a store with two models."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.session: Worm = memory_session(SCHEMA, clock=self.clock)
        self.ids = Ids.seeded(7, self.clock)

    def api(self, identify: Any, *, is_readonly: bool = False) -> Api:
        settings = ApiSettings(is_readonly=is_readonly)
        return Api(lambda: self.session, settings, identify, (*PROBES, NAMED, ASKED, WHOLE))

    def deployed(self, way: Any, *, is_readonly: bool = False) -> Api:
        return self.api(DeployedCallers(Trust(way, ISSUER, AUDIENCE)), is_readonly=is_readonly)

    def token(self, **options: Any) -> str:
        return create_token(self.session.store, self.ids, **options)[1]


@pytest.fixture
def place() -> Place:
    return Place()


def _event(method: str, path: str, authorizer: object = None, token: str | None = None, query: str = "") -> Any:
    given = event(method, path, headers={} if token is None else {"Authorization": f"Bearer {token}"}, query=query)
    if authorizer is not None:
        given["requestContext"]["authorizer"] = authorizer
    return given


def statuses(api: Api, authorizer: object = None, token: str | None = None) -> tuple[int, ...]:
    """Of reading, writing and administering."""
    found = [_event(one.method, one.path, authorizer, token) for one in PROBES]
    return tuple(reply(api.handle(one)).status for one in found)


def actor(api: Api, authorizer: object = None, token: str | None = None) -> str:
    return str(reply(api.handle(_event("GET", "/probe/read", authorizer, token))).json["actor"])


def jwt(place: Place, **claims: Any) -> dict[str, Any]:
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "user-1",
        "exp": str(int(place.clock.now().timestamp()) + 60),
        "scope": "read",
    }
    return {"jwt": {"claims": {**usual, **claims}, "scopes": None}}


IAM = {"iam": {"userArn": ARN, "accountId": "111122223333", "userId": "AROA:ann", "accessKey": "AKIA"}}
ALL_ALLOWED, READ_ALLOWED, NONE_ALLOWED, UNKNOWN = (200, 200, 200), (200, 403, 403), (403, 403, 403), (401, 401, 401)


# --- IAM


def test_a_signed_request_may_everything_and_is_named_by_its_arn(place: Place) -> None:
    api = place.deployed("iam")
    assert statuses(api, IAM) == ALL_ALLOWED
    assert actor(api, IAM) == ARN
    assert statuses(place.deployed("iam", is_readonly=True), IAM) == READ_ALLOWED


@pytest.mark.parametrize(
    "authorizer",
    [None, {}, {"iam": None}, {"iam": {}}, {"iam": {"userArn": ""}}, {"iam": {"userArn": 3}}, {"iam": "arn:"}, []],
)
def test_nobody_without_a_signature(place: Place, authorizer: object) -> None:
    assert statuses(place.deployed("iam"), authorizer) == UNKNOWN


def test_a_function_that_expects_signatures_takes_nothing_else(place: Place) -> None:
    """A function URL that somebody opens to all must not make tokens or claims count."""
    api = place.deployed("iam")
    assert statuses(api, jwt(place, scope="admin")) == UNKNOWN
    assert statuses(api, token=place.token()) == UNKNOWN


# --- JWT


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"scope": "read"}, READ_ALLOWED),
        ({"scope": "write"}, (200, 200, 403)),
        ({"scope": "admin"}, ALL_ALLOWED),
        ({"scope": "openid worm/write"}, (200, 200, 403)),
        ({"scope": "other/admin"}, NONE_ALLOWED),
        ({"scope": None, "scp": "[read write]"}, (200, 200, 403)),
        ({"scope": None, "scp": ["admin"]}, ALL_ALLOWED),
        ({"scope": "openid"}, NONE_ALLOWED),
        ({"scope": ""}, NONE_ALLOWED),
        ({"scope": 3}, NONE_ALLOWED),
        ({"scope": "READ"}, NONE_ALLOWED),
        ({"aud": "[other app-1]"}, READ_ALLOWED),
        ({"aud": ["other", "app-1"]}, READ_ALLOWED),
        ({"aud": None, "client_id": "app-1"}, READ_ALLOWED),
        ({"aud": "app-2"}, UNKNOWN),
        ({"aud": "app-2", "client_id": "app-1"}, UNKNOWN),
        ({"aud": None}, UNKNOWN),
        ({"iss": "https://evil.example"}, UNKNOWN),
        ({"exp": "0"}, UNKNOWN),
        ({"exp": None}, UNKNOWN),
        ({"exp": "never"}, UNKNOWN),
        ({"exp": "nan"}, UNKNOWN),
        ({"exp": "inf"}, UNKNOWN),
        ({"sub": ""}, UNKNOWN),
        ({"sub": None}, UNKNOWN),
        ({"sub": "x" * 300}, UNKNOWN),
    ],
)
def test_claims_decide(place: Place, claims: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert statuses(place.deployed("jwt"), jwt(place, **claims)) == expected


def test_a_claimed_identity_is_named_by_its_subject_and_expires(place: Place) -> None:
    api, given = place.deployed("jwt"), jwt(place)
    assert actor(api, given) == "jwt:user-1"
    place.clock.advance(61)
    assert statuses(api, given) == UNKNOWN


def test_an_api_with_jwt_takes_nothing_else(place: Place) -> None:
    api = place.deployed("jwt")
    others: list[object] = [None, IAM, {"jwt": None}, {"jwt": {"claims": None}}, {"jwt": []}]
    assert [one for one in others if statuses(api, one) != UNKNOWN] == []
    assert statuses(api, token=place.token()) == UNKNOWN


def test_a_readonly_api_leaves_reading_only(place: Place) -> None:
    api = place.deployed("jwt", is_readonly=True)
    for scope, left, expected in (("admin", ["read"], READ_ALLOWED), ("openid", [], NONE_ALLOWED)):
        given = jwt(place, scope=scope)
        assert statuses(api, given) == expected
        callers = DeployedCallers(Trust("jwt", ISSUER, AUDIENCE))
        call = Call("GET", "/v1", place.session, ApiSettings(is_readonly=True))
        assert sorted(callers(call, _event("GET", "/v1", given)).scopes) == left


# --- read tokens


def test_a_token_reads(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token()
    assert statuses(api, token=token) == READ_ALLOWED
    assert actor(api, token=token) == f"token:{token.split('_')[1]}"
    assert statuses(api, IAM) == UNKNOWN
    assert statuses(api, jwt(place, scope="admin")) == UNKNOWN


def test_a_token_expires(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token(days=2)
    place.clock.advance(timedelta(days=2).total_seconds() - 1)
    assert statuses(api, token=token) == READ_ALLOWED
    place.clock.advance(1)
    assert statuses(api, token=token) == UNKNOWN


def test_a_revoked_token_is_refused_as_soon_as_the_process_asks_again(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token()
    assert statuses(api, token=token) == READ_ALLOWED
    revoke_token(place.session.store, token.split("_")[1], place.clock)
    assert statuses(place.deployed("tokens"), token=token) == UNKNOWN
    place.clock.advance(KNOWN_SECONDS)
    assert statuses(api, token=token) == UNKNOWN


def test_a_token_costs_one_request_in_a_while(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token()
    asked = _event("GET", "/probe/read", token=token)
    assert [api.handle(asked)["headers"]["Worm-Requests"] for _ in range(3)] == ["1", "0", "0"]


def test_malformed_tokens_are_refused(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token()
    _, name, secret = token.split("_")
    other = place.token().split("_")[2]
    wrong = [
        "",
        "x",
        "worm__",
        f"worm_{name}",
        f"worm_{name}_",
        f"worm_{name}_{secret[:-1]}",
        f"worm_{name}_{secret}0",
        f"worm_{name}_{secret.upper()}",
        f"worm_{name}_{other}",
        f"worm_{'0' * 26}_{secret}",
        f"worm_../../x_{secret}",
        f"{token}, {token}",
        f"worm_{name}_{'é' * 64}",
    ]
    assert [one for one in wrong if statuses(api, token=one) != UNKNOWN] == []
    for header in (token, f"Basic {token}", f"bearer{token}", ""):
        given = event("GET", "/probe/read", headers={"Authorization": header})
        found = reply(api.handle(given))
        assert (found.status, found.slug) == (401, "unauthenticated")
        assert found.headers["WWW-Authenticate"] == 'Bearer realm="s3worm"'


def test_a_token_never_allows_more_than_reading_whatever_is_stored(place: Place) -> None:
    """Who may write the record could otherwise make an administrator of a token."""
    token = place.token()
    key = key_of(token.split("_")[1])
    stored = place.session.store.get(key)
    assert stored is not None
    shape = json.loads(stored.body) | {"scopes": ["read", "write", "admin"]}
    place.session.store.put(key, json.dumps(shape).encode())
    assert statuses(place.deployed("tokens"), token=token) == READ_ALLOWED


def test_the_secret_is_not_stored(place: Place) -> None:
    token = place.token()
    stored = place.session.store.get(key_of(token.split("_")[1]))
    assert stored is not None
    assert token.split("_")[2].encode() not in stored.body


# --- models of a token


def test_other_models_do_not_exist_for_a_token(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token(models=["Note"])

    def status(path: str, query: str = "") -> int:
        return reply(api.handle(_event("GET", path, token=token, query=query))).status

    assert [status("/probe/models/Note"), status("/probe/models/Secret"), status("/probe/models/None")] == [
        200,
        404,
        404,
    ]
    assert [status("/probe/asked", "model=Note"), status("/probe/asked", "model=Secret")] == [200, 404]
    assert status("/probe/asked", "model=Note&model=Secret") == 404
    assert (status("/probe/asked"), status("/probe/whole")) == (200, 403)
    secret = reply(api.handle(_event("GET", "/probe/models/Secret", token=token)))
    missing = reply(api.handle(_event("GET", "/probe/models/Nothing", token=token)))
    assert secret.json["detail"].replace("Secret", "Nothing") == missing.json["detail"]
    assert "Secret" not in secret.json["hint"]


def test_a_token_of_all_models_sees_all(place: Place) -> None:
    api, token = place.deployed("tokens"), place.token()
    paths = ("/probe/models/Secret", "/probe/whole")
    assert [reply(api.handle(_event("GET", one, token=token))).status for one in paths] == [200, 200]


# --- worm serve


def test_the_token_of_the_server_may_everything(place: Place) -> None:
    api = place.api(LocalCallers("one-time", actor="ann"))
    assert statuses(api, token="one-time") == ALL_ALLOWED
    assert actor(api, token="one-time") == "ann"
    assert statuses(api, token="other") == UNKNOWN
    assert statuses(api, token="ünïcode") == UNKNOWN
    assert statuses(api) == UNKNOWN
    assert statuses(api, IAM) == UNKNOWN


def test_a_server_that_only_reads(place: Place) -> None:
    api = place.api(LocalCallers("one-time", is_readonly=True), is_readonly=True)
    assert statuses(api, token="one-time") == READ_ALLOWED


def test_read_tokens_work_in_the_server_too(place: Place) -> None:
    assert statuses(place.api(LocalCallers("one-time")), token=place.token()) == READ_ALLOWED


# --- every route


def test_every_route_says_who_may_call_it() -> None:
    """A new route that needs no credentials must be named here."""
    assert {one.path for one in ROUTES if one.scope == "public"} <= OPEN
    assert [one.path for one in ROUTES if one.scope not in ("public", *SCOPES)] == []
    changing = [one for one in ROUTES if one.method != "GET" and one.scope == "read"]
    assert [
        one.path for one in changing if one.path.rsplit("/", 1)[-1] not in ("query", "aggregate", "count", "sql")
    ] == []


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one.scope != "public"], ids=lambda one: f"{one.method} {one.path}"
)
def test_no_route_answers_a_stranger(place: Place, route: Route) -> None:
    api = Api(lambda: place.session, None, DeployedCallers(Trust("tokens")))
    path = route.path.replace("{model}", "Note").replace("{", "").replace("}", "")
    found = reply(api.handle(event(route.method, path)))
    assert (found.status, found.slug) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one.models_shown == "named"], ids=lambda one: f"{one.method} {one.path}"
)
def test_no_route_shows_another_model(place: Place, route: Route) -> None:
    everything = frozenset(SCOPES)
    api = Api(lambda: place.session, None, lambda call, event: Identity("x", everything, frozenset({"Note"})))
    path = route.path.replace("{model}", "Secret").replace("{", "").replace("}", "")
    assert reply(api.handle(event(route.method, path, {}))).status == 404


# --- records


def test_tokens_are_listed_and_kept_after_they_are_revoked(place: Place) -> None:
    store = place.session.store
    first, _ = create_token(store, place.ids, models=["Note"], note="for Bob", actor="ann", days=1)
    place.clock.advance(1)
    second, _ = create_token(store, place.ids)
    store.put(".worm.api/tokens/README.txt", b"not a token")
    revoked = revoke_token(store, second.id, place.clock)
    assert [(one.id, one.state(place.clock.now())) for one in list_tokens(store)] == [
        (first.id, "active"),
        (second.id, "revoked"),
    ]
    assert find_token(store, first.id) == first
    assert revoke_token(store, second.id, place.clock) == revoked
    with pytest.raises(NotFound, match=r"the token '\.\./x' does not exist"):
        revoke_token(store, "../x", place.clock)


@pytest.mark.parametrize("options", [{"days": 0}, {"days": 367}, {"note": "x" * 201}])
def test_a_token_has_an_end_and_a_short_note(place: Place, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        place.token(**options)


def test_a_damaged_record_admits_nobody(place: Place) -> None:
    token = place.token()
    place.session.store.put(key_of(token.split("_")[1]), b'{"sha256": "x"}')
    with pytest.raises(Corrupt):
        list_tokens(place.session.store)
    assert statuses(place.deployed("tokens"), token=token) == UNKNOWN


# --- settings


def test_what_a_function_believes_comes_from_its_variables() -> None:
    assert Trust.from_environment({}) == Trust("iam")
    given = {"WORM_API_AUTH": "jwt", "WORM_API_ISSUER": ISSUER, "WORM_API_AUDIENCE": AUDIENCE}
    assert Trust.from_environment(given) == Trust("jwt", ISSUER, AUDIENCE)
    for wrong in ({"WORM_API_AUTH": "none"}, {"WORM_API_AUTH": "jwt"}, {**given, "WORM_API_AUDIENCE": ""}):
        with pytest.raises(Invalid):
            Trust.from_environment(wrong)
