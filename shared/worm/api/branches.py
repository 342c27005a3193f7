"""Branches by HTTP: create, delete and undelete them, compare and merge them.

Modules for branches are imported by the first call that needs them, so that a function starts faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from worm.api.call import JSON, Call, HttpAnswer, json_answer
from worm.api.histories import LIMIT_MAX, LIMIT_PARAMETER, NAME, TEXT, items_of
from worm.api.problems import HttpProblem
from worm.api.routes import REASON, WORM_REASON, Parameter, Route
from worm.errors import Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue

if TYPE_CHECKING:
    from worm.sdk import BranchChange, MergeResult
    from worm.spaces import BothChanged, Branch, Policy

POLICIES: dict[str, Policy] = {
    "fail": "fail",
    "ours": "ours",
    "theirs": "theirs",
    "fields": "fields",
    "fields-ours": "fields-ours",
    "fields-theirs": "fields-theirs",
}


def list_branches(call: Call) -> JsonObject:
    """`GET /v1/branches`: empty if no model is in a space."""
    if all(known.space is None for known in call.session.schema.models.values()):
        return {"items": []}
    return {"items": [_shape(one) for one in call.session.branches()]}


def create_branch(call: Call) -> HttpAnswer:
    """`POST /v1/branches`"""
    call.check_sees_all()
    body = _members(call, "name", "at", "parent", "space")
    name, at = _text(body, "name"), body.get("at")
    if at is not None and (isinstance(at, bool) or not isinstance(at, int | str)):
        raise Invalid(f"must be the number of a commit or a time, not {show(at)}", path="at")
    space = None if body.get("space") is None else _text(body, "space")
    call.session.create_branch(name, at=at, parent=_text(body, "parent", "main"), space=space)
    return json_answer(_shape(_found(call, name)), 201, {"Location": "/v1/branches"})


def delete_branch(call: Call) -> HttpAnswer:
    """`DELETE /v1/branches/{branch}`"""
    call.check_sees_all()
    call.session.delete_branch(call.parameters["branch"])
    return HttpAnswer(204)


def undelete_branch(call: Call) -> JsonObject:
    """`POST /v1/branches/{branch}/undelete`"""
    call.check_sees_all()
    call.session.undelete_branch(call.parameters["branch"])
    return _shape(_found(call, call.parameters["branch"]))


def show_difference(call: Call) -> JsonObject:
    """`GET /v1/branches/{branch}/diff`"""
    changes = call.session.diff(call.parameters["branch"], into=call.query.one("into") or "main")
    seen = [one for one in changes if call.identity.sees(one.model)]
    limit = call.query.number("limit", LIMIT_MAX, least=1, most=LIMIT_MAX)
    return {"items": _changes(seen[:limit]), "count": len(seen)}


def merge(call: Call) -> JsonObject:
    """`POST /v1/branches/{branch}/merge`"""
    from worm.spaces import MergeConflict

    call.check_sees_all()
    body = _members(call, "into", "policy", "dryRun", "checkReferences")
    policy = _text(body, "policy", "fail")
    if policy not in POLICIES:
        raise Invalid(f"{show(policy)} is not a policy", path="policy", hint=f"one of {', '.join(POLICIES)}")
    try:
        results = call.session.merge(
            call.parameters["branch"],
            into=_text(body, "into", "main"),
            policy=POLICIES[policy],
            dry_run=_flag(body, "dryRun", False),
            check_references=_flag(body, "checkReferences", True),
            **call.about,
        )
    except MergeConflict as conflict:
        conflicts: list[JsonValue] = [_conflict(one) for one in conflict.conflicts[:LIMIT_MAX]]
        raise HttpProblem(409, "merge-conflict", conflict.message, hint=conflict.hint, conflicts=conflicts) from None
    return {"items": [_result(one) for one in results]}


def _found(call: Call, name: str) -> Branch:
    for one in call.session.branches():
        if one.name == name:
            return one
    raise NotFound(f"the branch {show(name)} does not exist")


def _shape(branch: Branch) -> JsonObject:
    return {
        "name": branch.name,
        "parent": branch.parent,
        "forkSeq": branch.fork_seq,
        "head": branch.head_seq,
        "createdSeq": branch.created_seq,
        "isDeleted": not branch.is_active,
    }


def _changes(changes: Sequence[BranchChange]) -> list[JsonValue]:
    return [
        {
            "model": one.model,
            "id": one.id,
            "change": one.change,
            "isConflict": one.is_conflict,
            "fields": [{"path": path, "from": pair[0], "to": pair[1]} for path, pair in one.fields.items()],
        }
        for one in changes
    ]


def _result(result: MergeResult) -> JsonObject:
    return {
        "branch": result.branch,
        "into": result.into,
        "mergeId": result.merge_id,
        "seqs": list[JsonValue](result.seqs),
        "changes": _changes(result.changes[:LIMIT_MAX]),
        "count": len(result.changes),
    }


def _conflict(both: BothChanged) -> JsonObject:
    model, _, entity_id = both.id.partition("/")
    return {
        "model": model,
        "id": entity_id,
        "fields": list[JsonValue](both.fields),
        "base": both.base.value,
        "ours": both.ours.value,
        "theirs": both.theirs.value,
    }


def _members(call: Call, *names: str) -> JsonObject:
    """The body; a missing body counts as an empty one."""
    body = call.json_object() if call.body.strip() else {}
    unknown = sorted(body.keys() - {*names})
    if unknown:
        raise Invalid("unknown member", path=unknown[0], hint=f"known: {', '.join(names)}")
    return body


def _text(body: JsonObject, name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise Invalid(f"must be text, not {show(value)}", path=name)
    return value


def _flag(body: JsonObject, name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise Invalid(f"must be true or false, not {show(value)}", path=name)
    return value


_BRANCH: JsonObject = {
    "name": TEXT,
    "parent": NAME,
    "forkSeq": {"type": ["integer", "null"]},
    "head": {"type": "integer"},
    "createdSeq": {"type": "integer"},
    "isDeleted": {"type": "boolean"},
}
_CHANGE: JsonObject = {
    "model": TEXT,
    "id": TEXT,
    "change": {"enum": ["created", "updated", "deleted"]},
    "isConflict": {"type": "boolean"},
    "fields": {"type": "array", "items": {"type": "object"}},
}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_ONE = "/v1/branches/{branch}"
ROUTES = (
    Route(
        "GET",
        "/v1/branches",
        list_branches,
        "List all branches, including deleted ones",
        answer=items_of(_BRANCH),
        models="filtered",
        tag="branches",
    ),
    Route(
        "POST",
        "/v1/branches",
        create_branch,
        "Create a branch that begins as its parent is now, or was",
        scope="write",
        body={
            JSON: {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": TEXT,
                    "at": {"type": ["integer", "string", "null"], "description": "A commit or a time."},
                    "parent": TEXT,
                    "space": NAME,
                },
                "additionalProperties": False,
            }
        },
        answer={"type": "object", "properties": _BRANCH},
        status=201,
        problems=(404, 409, 422),
        tag="branches",
    ),
    Route(
        "DELETE",
        _ONE,
        delete_branch,
        "Delete a branch: it takes no more commits, and can still be read",
        scope="admin",
        status=204,
        problems=(404, 409),
        tag="branches",
    ),
    Route(
        "POST",
        f"{_ONE}/undelete",
        undelete_branch,
        "Restore a deleted branch: it takes commits again",
        scope="admin",
        answer={"type": "object", "properties": _BRANCH},
        problems=(404, 409),
        tag="branches",
    ),
    Route(
        "GET",
        f"{_ONE}/diff",
        show_difference,
        "Show what merging the branch would change",
        parameters=(Parameter("into", "The branch to merge into; `main` by default."), LIMIT_PARAMETER),
        answer=items_of(_CHANGE, count=_COUNT),
        problems=(404,),
        models="filtered",
        tag="branches",
    ),
    Route(
        "POST",
        f"{_ONE}/merge",
        merge,
        "Merge the changes of a branch into another one",
        scope="write",
        parameters=(REASON, WORM_REASON),
        body={
            JSON: {
                "type": "object",
                "properties": {
                    "into": TEXT,
                    "policy": {"enum": list[JsonValue](POLICIES)},
                    "dryRun": {"type": "boolean"},
                    "checkReferences": {"type": "boolean"},
                },
                "additionalProperties": False,
            }
        },
        answer=items_of({"branch": TEXT, "into": TEXT, "mergeId": NAME, "seqs": {"type": "array"}, "count": _COUNT}),
        problems=(404, 409, 422),
        tag="branches",
    ),
)
