"""The exact key strings of the format, and what each parses back to."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from worm.collections.layout import BUCKET_SENTINEL, SCHEMA_KEY, KeyInfo, KeyKind, StorageResolver, is_system_key
from worm.errors import Invalid, NotFound
from worm.formats import load_schema

TIME = "2026-02-24T12:00:00Z"
SHA = "ab" * 32
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def resolver(**storage: str) -> StorageResolver:
    return StorageResolver(
        load_schema(
            {
                "storage": storage,
                "models": {
                    "Customer": {"path": "#org/@customers/(id:string)", "file": "profile.json"},
                    "Account": {"path": "#org/@accounts/(id:uuid)"},
                    "OrgSettings": {"path": "#org/@settings"},
                },
            }
        )
    )


@pytest.mark.parametrize(
    ("layout", "oplog", "snapshots", "trash"),
    [
        ("root", ".oplog/customers/abc-123/", ".snapshots/customers/abc-123/", ".worm.trash/customers/abc-123/"),
        (
            "collection",
            "org/customers/.oplog/abc-123/",
            "org/customers/.snapshots/abc-123/",
            "org/customers/.worm.trash/abc-123/",
        ),
        (
            "inline",
            "org/customers/abc-123/.oplog/",
            "org/customers/abc-123/.snapshots/",
            "org/customers/abc-123/.worm.trash/",
        ),
    ],
)
def test_system_directories_lie_where_the_layout_says(layout: str, oplog: str, snapshots: str, trash: str) -> None:
    keys = resolver(layout=layout)
    assert keys.oplog_path("Customer", "abc-123") == oplog
    assert keys.snapshot_path("Customer", "abc-123") == snapshots
    assert keys.trash_path("Customer", "abc-123") == trash
    assert keys.oplog_key("Customer", "abc-123", 1) == f"{oplog}0001.json"
    assert keys.snapshot_key("Customer", "abc-123", TIME) == f"{snapshots}{TIME}.json"
    assert keys.trash_key("Customer", "abc-123") == f"{trash}profile.json"
    assert keys.tombstone_key("Customer", "abc-123") == f"{trash}.worm.tombstone"


def test_directories_are_named_for_any_safe_id_whatever_the_type() -> None:
    assert resolver().oplog_path("Account", "abc-123") == ".oplog/accounts/abc-123/"
    with pytest.raises(Invalid, match="must be a lower-case UUID"):
        resolver().document_key("Account", "abc-123")


def test_overrides_win_over_the_default_layout() -> None:
    keys = resolver(layout="root", snapshots="inline", trash="collection")
    assert keys.oplog_path("Customer", "a") == ".oplog/customers/a/"
    assert keys.snapshot_path("Customer", "a") == "org/customers/a/.snapshots/"
    assert keys.trash_path("Customer", "a") == "org/customers/.worm.trash/a/"


@pytest.mark.parametrize(
    ("layout", "oplog"),
    [("root", ".oplog/settings/_/"), ("collection", "org/settings/.oplog/_/"), ("inline", "org/settings/.oplog/")],
)
def test_a_singleton_has_one_document_with_the_id_underscore(layout: str, oplog: str) -> None:
    keys = resolver(layout=layout)
    assert keys.document_key("OrgSettings", "_") == "org/settings/data.json"
    assert keys.oplog_path("OrgSettings", "_") == oplog
    with pytest.raises(Invalid, match="the model has a single document"):
        keys.oplog_path("OrgSettings", "a")


def test_the_other_keys_do_not_depend_on_the_layout() -> None:
    for layout in ("root", "collection", "inline"):
        keys = resolver(layout=layout)
        assert keys.collection_path("Customer") == "org/customers/"
        assert keys.document_key("Customer", "abc-123") == "org/customers/abc-123/profile.json"
        assert keys.manifest_key("Customer") == "org/customers/.worm.manifest.json"
        assert keys.manifest_dir("Customer") == "org/customers/.worm.manifest/"
        assert keys.index_key("Customer", "status") == "org/customers/.worm.index/status.json"
        assert keys.index_key("Customer", "address.city") == "org/customers/.worm.index/address.city.json"
        assert keys.claim_key("Customer", "email", SHA) == f"org/customers/.worm.index/email/.claims/{SHA}"
        assert keys.heads_key("Customer") == "org/customers/.worm.heads.json"
        assert keys.change_set_key("Customer", ULID) == f".worm.changes/customers/{ULID}.json"
        assert keys.collection_sentinel_key("Customer") == "org/customers/.worm"
    assert (BUCKET_SENTINEL, SCHEMA_KEY) == (".worm", ".worm.schema.json")


@pytest.mark.parametrize(
    ("seq", "name"),
    [(1, "0001"), (9999, "9999"), (10_000, "10000"), (10**10, "10000000000"), (10**19 - 1, "9999999999999999999")],
)
def test_a_seq_has_at_least_four_digits_and_any_length_parses_back(seq: int, name: str) -> None:
    key = resolver().oplog_key("Customer", "a", seq)
    assert key == f".oplog/customers/a/{name}.json"
    assert resolver().parse(key) == KeyInfo(KeyKind.OPLOG, "Customer", "a", seq=seq)


@pytest.mark.parametrize("seq", [0, -1, 10**19])
def test_a_seq_out_of_range_is_refused(seq: int) -> None:
    with pytest.raises(Invalid, match="oplog seq must be from 1"):
        resolver().oplog_key("Customer", "a", seq)


def test_names_that_do_not_fit_their_place_are_refused() -> None:
    keys = resolver()
    with pytest.raises(Invalid, match="snapshot name"):
        keys.snapshot_key("Customer", "a", "../x")
    with pytest.raises(Invalid, match="change set name"):
        keys.change_set_key("Customer", "x")
    with pytest.raises(Invalid, match="claim digest"):
        keys.claim_key("Customer", "a", "x")
    with pytest.raises(NotFound, match="known: Customer, Account, OrgSettings"):
        keys.document_key("Nobody", "a")


UNKNOWN_IN_PLACE = {
    "org/accounts/ABC/data.json": "id 'ABC' must be a lower-case UUID such as 1b4e28ba-2fa1-4d2e-883f-0016d3cca427",
    "org/customers//profile.json": "has a path segment that is empty, '.' or '..'",
    "org/customers/a//b/profile.json": "has a path segment that is empty, '.' or '..'",
    "org/customers/a/../b/profile.json": "has a path segment that is empty, '.' or '..'",
    "org/customers/../profile.json": "has a path segment that is empty, '.' or '..'",
    "org/customers/%2e%2e/profile.json": (
        "'%2e%2e' is not the escaped form of an id: in keys, the id '..' is '%2E%2E'"
    ),
    "org/customers/a%2Fb/profile.json": (
        "'a%2Fb' is not the escaped form of an id: in keys, the id 'a/b' is '%61%2Fb'"
    ),
    "org/customers/%61b/profile.json": "'%61b' is not the escaped form of an id: in keys, the id 'ab' is 'ab'",
    "org/customers/100%/profile.json": "'100%' has a broken escape: in keys, the id '100%' is '%3100%25'",
    "org/customers/%FF/profile.json": "'%FF' has a broken escape: in keys, the id '%FF' is '%25FF'",
    "org/customers/%65%CC%81%2F/profile.json": (
        "id 'e\u0301/' is not in Unicode normal form C (text that looks the same must be the same)"
    ),
    "org/customers/a\x00/profile.json": (
        "'a\\x00' is not the escaped form of an id: in keys, the id 'a\\x00' is '%61%00'"
    ),
    "org/customers/e\u0301/profile.json": (
        "id 'e\u0301' is not in Unicode normal form C (text that looks the same must be the same)"
    ),
    "org/customers/a\x7f/profile.json": "id 'a\\x7f' contains the control character U+007F",
    "org/customers/a\u202e/profile.json": "id 'a\\u202e' contains the text direction mark U+202E",
    "org/customers/\ud800/profile.json": "id '\\ud800' contains a lone surrogate",
    f"org/customers/{'x' * 1025}/profile.json": f"id '{'x' * 1025}' has 1025 bytes, and the limit is 200",
}


@pytest.mark.parametrize(
    ("id", "segment"),
    [
        ("jane@acme.com", "jane@acme.com"),
        ("Jane Doe", "Jane Doe"),
        ("Müller, 東京 😀", "Müller, 東京 😀"),
        ("a+b=c:d", "a+b=c:d"),
        ("DOMAIN\\user", "DOMAIN\\user"),
        ("a/b", "%61%2Fb"),
        ("100%", "%3100%25"),
        (".hidden", "%2Ehidden"),
        ("..", "%2E%2E"),
        ("ü/x-y", "%C3%BC%2Fx%2Dy"),
        ("https://acme.com/a b", "%68ttps:%2F%2Facme%2Ecom%2Fa%20b"),
        ("a\nb", "%61%0Ab"),
    ],
)
def test_any_text_is_an_id_and_what_a_key_cannot_hold_is_escaped(id: str, segment: str) -> None:
    key = f"org/customers/{segment}/profile.json"
    assert resolver().document_key("Customer", id) == key
    assert resolver().parse(key) == KeyInfo(KeyKind.DOCUMENT, "Customer", id)
    assert unquote(segment) == id
    assert resolver().parse(resolver().oplog_key("Customer", id, 3)) == KeyInfo(KeyKind.OPLOG, "Customer", id, seq=3)


@pytest.mark.parametrize("key", UNKNOWN_IN_PLACE)
def test_a_hostile_id_in_a_documents_place_is_unknown_with_the_model_and_the_reason(key: str) -> None:
    """F41: one id must not mean different objects to different clients."""
    info = resolver().parse(key)
    model = "Account" if "accounts" in key else "Customer"
    assert (info.kind, info.model, info.reason) == (KeyKind.UNKNOWN, model, UNKNOWN_IN_PLACE[key])


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "x",
        "org",
        "org/",
        "org/customers",
        "org/customers/",
        "org/customers/profile.json",
        "org/customers/a/other.json",
        "org/customers/a/sub/profile.json",
        "org/settings/a/data.json",
        "org/other/a/data.json",
        "/org/customers/a/profile.json",
        "ORG/customers/a/profile.json",
        "org/customers/.oplog/profile.json",
        "org/customers/.oplog/a/0001.json",
        "org/customers/a/.oplog/0001.json",
        ".oplog/customers/a/1.json",
        ".oplog/customers/a/0000.json",
        ".oplog/customers/a/00001.json",
        ".oplog/customers/a/\u0661\u0661\u0661\u0661.json",
        ".oplog/nobody/a/0001.json",
        ".oplog/accounts/a/0001.json",
        ".worm.changes/customers/x.json",
        "org/customers/.worm.index/~e9.json",
        "org/customers/.worm.index/~41.json",
        "org/customers/.worm.index/.json",
        "org/customers/.worm.manifest/partition-01.json",
        ".worm.manifest.json",
        ".worm.trash/customers/a/.worm",
    ],
)
def test_a_key_of_no_model_is_unknown_without_a_model(key: str) -> None:
    info = resolver(layout="root").parse(key)
    assert (info.kind, info.model, bool(info.reason)) == (KeyKind.UNKNOWN, None, True)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (".worm", True),
        (".oplog/customers/a/0001.json", True),
        ("org/customers/.worm", True),
        ("db/x/log/1", True),
        ("org/customers/a/.oplog/0001.json", True),
        ("org/customers/a/profile.json", False),
        ("dbx/a.json", False),
        ("org/customers/a.b/profile.json", False),
    ],
)
def test_system_keys_are_told_without_a_schema(key: str, expected: bool) -> None:
    assert is_system_key(key) is expected
