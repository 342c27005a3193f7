"""Whatever is built parses back to itself, and parsing never raises."""

from __future__ import annotations

import itertools
import sys
import unicodedata
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.clock import Ids
from worm.collections.layout import (
    ArchiveName,
    KeyInfo,
    KeyKind,
    StorageResolver,
    escape_field,
    is_system_key,
    mark_name,
    unescape_field,
)
from worm.errors import Invalid
from worm.formats import load_schema
from worm.formats.fields import ID_TYPES, SINGLETON_ID, IdType, check_id, new_id, typed_problem
from worm.upkeep.why import nearest_miss

LAYOUTS = ("root", "collection", "inline")
MODELS: dict[str, dict[str, object]] = {
    "Uuid": {"path": "#org/@uuids/(id:uuid)", "file": "profile.json"},
    "Text": {"path": "#org/#deep/@texts/(id:string)"},
    "Slug": {"path": "@slugs/(id:slug)"},
    "Int": {"path": "#org/@ints/(id:int)"},
    "Ulid": {"path": "#a.b/@ulids/(id:ulid)"},
    "Single": {"path": "#org/@single"},
    "Nested": {"path": "#org/#uuids/#sub/@nested/(id:string)"},
}
RESOLVERS = [
    StorageResolver(load_schema({"storage": {"oplog": a, "snapshots": b, "trash": c}, "models": MODELS}))
    for a, b, c in itertools.product(LAYOUTS, repeat=3)
]
TYPES = {"Uuid": "uuid", "Text": "string", "Slug": "slug", "Int": "int", "Ulid": "ulid", "Nested": "string"}
IDS = {
    "uuid": st.uuids().map(str),
    "string": (
        st.from_regex(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}", fullmatch=True)
        | st.text("ab./%@+ é\x01", min_size=1, max_size=20)
        | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(partial(unicodedata.normalize, "NFC"))
    ).filter(lambda one: typed_problem("string", one) is None),
    "slug": st.from_regex(r"[a-z0-9]{1,40}(-[a-z0-9]{1,40}){0,3}", fullmatch=True),
    "int": st.integers(0, 2**63 - 1).map(str),
    "ulid": st.from_regex(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", fullmatch=True),
}
FIELDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)


@st.composite
def entities(draw: st.DrawFn) -> tuple[StorageResolver, str, str]:
    resolver = draw(st.sampled_from(RESOLVERS))
    model = draw(st.sampled_from(sorted(MODELS)))
    return resolver, model, SINGLETON_ID if model == "Single" else draw(IDS[TYPES[model]])


HASH = "0123456789abcdef"


@given(entities(), st.integers(1, 10**19 - 1))
def test_keys_of_an_entity_parse_back(entity: tuple[StorageResolver, str, str], seq: int) -> None:
    keys, model, entity_id = entity
    name = "2026-02-24T12:00:00.123Z"
    mark = mark_name("2026-02-24T12:00:00Z", seq)
    assert mark is not None
    built = {
        keys.document_key(model, entity_id): KeyInfo(KeyKind.DOCUMENT, model, entity_id),
        keys.oplog_key(model, entity_id, seq): KeyInfo(KeyKind.OPLOG, model, entity_id, seq=seq),
        keys.time_mark_key(model, entity_id, mark): KeyInfo(KeyKind.TIME_MARK, model, entity_id, seq, mark),
        keys.snapshot_key(model, entity_id, name): KeyInfo(KeyKind.SNAPSHOT, model, entity_id, name=name),
        keys.trash_key(model, entity_id): KeyInfo(KeyKind.TRASH, model, entity_id),
        keys.tombstone_key(model, entity_id): KeyInfo(KeyKind.TOMBSTONE, model, entity_id),
    }
    assert {key: keys.parse(key) for key in built} == built
    assert [is_system_key(key) for key in built] == [False, True, True, True, True, True]
    assert max(len(key.encode()) for key in built) <= 1024


@given(st.sampled_from(RESOLVERS), st.sampled_from(sorted(MODELS)), FIELDS, st.binary(min_size=32, max_size=32))
def test_keys_of_a_collection_parse_back(keys: StorageResolver, model: str, field: str, digest: bytes) -> None:
    ulid = Ids.seeded(1).ulid()
    built = {
        keys.manifest_key(model): KeyInfo(KeyKind.MANIFEST, model),
        keys.manifest_dir(model) + "_meta.json": KeyInfo(KeyKind.MANIFEST, model, name="_meta"),
        keys.manifest_dir(model) + f"partition-12-{HASH}.json": KeyInfo(
            KeyKind.MANIFEST, model, name=f"partition-12-{HASH}"
        ),
        keys.lake_dir(model) + f"partition-12-{HASH}.parquet": KeyInfo(
            KeyKind.LAKE, model, name=f"partition-12-{HASH}.parquet"
        ),
        keys.lake_dir(model) + "_worm.json": KeyInfo(KeyKind.LAKE, model, name="_worm.json"),
        **{
            f"{keys.lake_dir(model)}_delta_log/{name}": KeyInfo(KeyKind.LAKE, model, name=f"_delta_log/{name}")
            for name in (f"{7:020d}.json", f"{10:020d}.checkpoint.parquet", "_last_checkpoint")
        },
        keys.manifest_dir(model) + f"delta-{HASH}.json": KeyInfo(KeyKind.MANIFEST, model, name=f"delta-{HASH}"),
        keys.heads_dir(model) + f"heads-0-{HASH}.json": KeyInfo(KeyKind.HEADS, model, name=f"heads-0-{HASH}"),
        keys.heads_dir(model) + f"directory-{HASH}.json": KeyInfo(KeyKind.HEADS, model, name=f"directory-{HASH}"),
        keys.index_key(model, field).removesuffix(".json") + f"/part-3-{HASH}.json": KeyInfo(
            KeyKind.INDEX, model, name=f"part-3-{HASH}", field=field
        ),
        keys.index_key(model, field): KeyInfo(KeyKind.INDEX, model, field=field),
        keys.claim_key(model, field, digest.hex()): KeyInfo(KeyKind.CLAIM, model, name=digest.hex(), field=field),
        keys.heads_key(model): KeyInfo(KeyKind.HEADS, model),
        keys.change_set_key(model, ulid): KeyInfo(KeyKind.CHANGE_SET, model, name=ulid),
        keys.collection_sentinel_key(model): KeyInfo(KeyKind.SENTINEL, model),
        ".worm": KeyInfo(KeyKind.SENTINEL),
        ".worm.schema.json": KeyInfo(KeyKind.SCHEMA),
        "db/main/log/00000000000000000001": KeyInfo(KeyKind.LOG, name="main/log/00000000000000000001"),
    }
    assert {key: keys.parse(key) for key in built} == built
    assert all(is_system_key(key) for key in built)


SEGMENTS = st.sampled_from(
    [
        "org",
        "uuids",
        "texts",
        "deep",
        "slugs",
        "single",
        "a",
        "",
        ".",
        "..",
        ".oplog",
        ".snapshots",
        ".worm.trash",
        "0001.json",
        "data.json",
        "profile.json",
        ".worm",
        ".worm.index",
        ".claims",
        ".worm.changes",
        ".worm.manifest",
        "_",
        "db",
        "~4",
        "\ud800",
    ]
)


@given(st.sampled_from(RESOLVERS), st.text(st.characters()) | st.lists(SEGMENTS | st.text(max_size=3)).map("/".join))
def test_parsing_never_raises_and_what_it_names_can_be_built(keys: StorageResolver, key: str) -> None:
    info = keys.parse(key)
    if info.kind is KeyKind.DOCUMENT and info.model and info.id:
        assert keys.document_key(info.model, info.id) == key
    elif info.kind is KeyKind.OPLOG and info.model and info.id and info.seq:
        assert keys.oplog_key(info.model, info.id, info.seq) == key
    elif info.kind is KeyKind.INDEX and info.model and info.field:
        assert keys.index_key(info.model, info.field) == key
    else:
        assert info.kind is not KeyKind.UNKNOWN or info.reason


@given(st.sampled_from(RESOLVERS), st.sampled_from(sorted(TYPES)), st.text(st.characters(), max_size=20))
def test_an_id_is_refused_or_round_trips(keys: StorageResolver, model: str, id: str) -> None:
    try:
        key = keys.document_key(model, id)
    except Invalid:
        return
    assert keys.parse(key) == KeyInfo(KeyKind.DOCUMENT, model, id)


@given(FIELDS, FIELDS)
def test_each_field_has_its_own_file_name(one: str, other: str) -> None:
    assert unescape_field(escape_field(one)) == one
    assert (escape_field(one) == escape_field(other)) is (one == other)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("status", "status"),
        ("a.b", "a.b"),
        (".claims", "~2Eclaims"),
        ("a/b~", "a~2Fb~7E"),
        ("é", "~C3~A9"),
        (" ", "~20"),
    ],
)
def test_odd_characters_of_a_field_are_escaped_in_its_file_name(field: str, name: str) -> None:
    assert (escape_field(field), unescape_field(name)) == (name, field)


@given(st.text(st.characters(), max_size=12))
def test_a_file_name_is_of_one_field_or_of_none(name: str) -> None:
    field = unescape_field(name)
    assert field is None or escape_field(field) == name


@pytest.mark.parametrize("field", ["", "x" * 201, "\ud800"])
def test_a_field_without_a_possible_file_name_is_refused(field: str) -> None:
    with pytest.raises(Invalid, match="field"):
        escape_field(field)


@pytest.mark.parametrize("id_type", ID_TYPES)
def test_new_ids_are_valid_differ_and_replay_from_a_seed(id_type: IdType) -> None:
    ids, again = Ids.seeded(7), Ids.seeded(7)
    made = [check_id(id_type, new_id(id_type, ids)) for _ in range(50)]
    assert (len(set(made)), made) == (50, [new_id(id_type, again) for _ in range(50)])


@pytest.mark.parametrize(
    ("id_type", "id"),
    [
        ("uuid", "1B4E28BA-2FA1-4D2E-883F-0016D3CCA427"),
        ("uuid", "1b4e28ba2fa14d2e883f0016d3cca427"),
        ("uuid", "{1b4e28ba-2fa1-4d2e-883f-0016d3cca427}"),
        ("uuid", "1b4e28ba-2fa1-4d2e-883f-0016d3cca427\n"),
        ("int", "007"),
        ("int", "-1"),
        ("int", "9223372036854775808"),
        ("int", "\u0661"),
        ("int", "1.0"),
        ("ulid", "01arz3ndektsv4rrffq69g5fav"),
        ("ulid", "81ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("ulid", "01ARZ3NDEKTSV4RRFFQ69G5FA"),
        ("slug", "Acme"),
        ("slug", "a--b"),
        ("slug", "-a"),
        ("slug", "a-"),
        ("slug", "a_b"),
        ("string", "x" * 201),
        ("string", "/" * 67),
        ("string", ""),
        ("string", "_"),
        ("string", "a\x7fb"),
        ("string", "a\x85b"),
        ("string", "a\u202eb"),
        ("string", "e\u0301"),
    ],
)
def test_an_id_of_the_wrong_form_is_refused(id_type: IdType, id: str) -> None:
    with pytest.raises(Invalid, match=r"^id "):
        check_id(id_type, id)


@pytest.mark.parametrize("key", ["org/m7/one/data.json", "org/m7/one/wrong.json", ".oplog/m7/one/0001.json"])
def test_what_a_key_is_takes_no_longer_with_many_models(key: str) -> None:
    """A listing parses every key: a look at each model would make it models times keys."""

    def calls(models: int) -> int:
        definitions = {f"M{at}": {"path": f"#org/@m{at}/(id:slug)", "oplog": True} for at in range(models)}
        schema, count = load_schema({"models": definitions}), 0
        resolver, listed = StorageResolver(schema), list(schema.models.values())

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            if resolver.parse(key).kind is KeyKind.UNKNOWN:
                nearest_miss(resolver, listed, key)
        finally:
            sys.setprofile(None)
        return count

    assert calls(200) == calls(10)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("directory", [".oplog", ".snapshots", ".worm.trash"])
@pytest.mark.parametrize("rest", ["", "/a", "/a/", "/a/.times", "/a/.archive", "/a/.times/1", "/a/b/c/d"])
def test_a_system_directory_that_ends_too_early_is_no_key_of_ours(layout: str, directory: str, rest: str) -> None:
    """One such object, put by anybody, would stop every listing of its collection."""
    keys = StorageResolver(load_schema({"storage": {"layout": layout}, "models": MODELS}))
    for folder in ("", "texts/", "org/deep/texts/", "org/deep/texts/a/", "org/uuids/"):
        assert keys.parse(f"{folder}{directory}{rest}").kind is KeyKind.UNKNOWN


MOMENT = "251630366399"


@pytest.mark.parametrize(
    "name",
    [
        f"{MOMENT}-{'0' * 19}-{1:019d}-{'a' * 16}",  # a seq of 10^19
        f"{MOMENT}-{10**19 - 5:019d}-{4:019d}-{'a' * 16}",  # from 5 to 4
        f"{MOMENT}-{10**19 - 5:019d}",  # the mark of an entry
    ],
)
def test_a_mark_of_no_archive_is_taken_for_none(name: str) -> None:
    assert ArchiveName.of_mark(name) is None


@pytest.mark.parametrize("file", ["0000-0003-", "0005-0004-", "00001-0003-"])
def test_the_name_of_an_archive_counts_up_from_one(file: str) -> None:
    assert ArchiveName.parse(f"{file}{'a' * 16}.ndjson") is None
    assert ArchiveName.parse(f"0003-0003-{'a' * 16}.ndjson") == ArchiveName(3, 3, "a" * 16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_directories_of_marks_and_archives_hold_them_and_only_for_ids_of_the_model(layout: str) -> None:
    """An object of anybody under such a name would be a part of the history."""
    keys = StorageResolver(load_schema({"storage": {"layout": layout}, "models": MODELS}))
    uuid = "1b4e28ba-2fa1-4d2e-883f-0016d3cca427"
    model = next(name for name, kind in TYPES.items() if kind == "uuid")
    mark = mark_name("2026-02-24T12:00:00Z", 7)
    assert mark is not None
    archive = keys.archive_path(model, uuid) + f"0003-0003-{'a' * 16}.ndjson"
    for key in (keys.time_mark_key(model, uuid, mark), archive):
        assert keys.parse(key).kind in (KeyKind.TIME_MARK, KeyKind.ARCHIVE)
        assert keys.parse(key.replace(uuid, "no-uuid")).kind is KeyKind.UNKNOWN
        *_, directory, file = key.split("/")
        assert keys.parse(key.replace(f"/{directory}/{file}", f"/elsewhere/{file}")).kind is KeyKind.UNKNOWN
