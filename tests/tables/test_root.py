"""Changes of a root without a store: what each comes to, and the invariants that no change may break."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

import pytest

from tests.harness import schema_of
from tests.tables.test_spread_tables import fill, root_of, spread_path
from worm.collections.entries import Change, Head, Heads, Row
from worm.errors import Corrupt
from worm.formats import ModelDef, load_schema
from worm.store.cas import InvariantBroken
from worm.tables.build import RecordedNews
from worm.tables.index import Index
from worm.tables.layout import (
    Edit,
    EditStream,
    HeadsLayout,
    Keyed,
    ManifestLayout,
    NewFiles,
    folded,
    formed,
    merged_deltas,
    rebased,
    remade,
)
from worm.tables.manifest import Manifest, ReadRow
from worm.tables.root import By, Counted, IndexPieces, Piece, Root, check, decode_directory
from worm.tables.sealed import seal, unseal

T = TypeVar("T", bound=Keyed)


def model(*, oplog: bool = True, threshold: int = 4, partitions: int = 3) -> ModelDef:
    manifest = {"enabled": True, "partitionThreshold": threshold, "maxPartitions": partitions}
    return load_schema(json.loads(json.dumps(schema_of(oplog=oplog, manifest=manifest)))).models["Customer"]


LAYOUT = ManifestLayout(model())
AT = "2026-01-01T00:00:00Z"


def change(entity_id: str, seq: int = 1, status: str | None = "active") -> Change:
    row: Row | None = None if status is None else {"status": status}
    return Change(entity_id, Head(seq, "etag", None, status is not None, AT), row)


def table(*ids: str, layout: ManifestLayout = LAYOUT) -> Manifest:
    empty = Manifest("Customer", fields=layout.fields)
    return empty.folded([change(one) for one in ids]) or empty


def news(*changes: Change) -> RecordedNews[Manifest]:
    return RecordedNews(Manifest("Customer"), changes)


def exhausted(stream: EditStream[T]) -> tuple[list[NewFiles[T]], Edit[T]]:
    """What a stream would have stored, in order, and its end."""
    steps: list[NewFiles[T]] = []
    while True:
        try:
            steps.append(next(stream))
        except StopIteration as end:
            return steps, end.value


def parsed(root: Root[Manifest], steps: Sequence[NewFiles[Manifest]]) -> list[Manifest]:
    """The partitions that a root names, by their bytes."""
    bodies = {file.piece.file: file.body for step in steps for file in step.pieces}
    return [Manifest.decode(bodies[piece.file], piece.file) for piece in root.partitions]


def spread(*ids: str) -> tuple[Root[Manifest], list[Manifest]]:
    steps, edit = exhausted(formed(LAYOUT, table(*ids), None, (), "source"))
    return edit.root, parsed(edit.root, steps)


# What changes come to


def test_a_fold_into_a_whole_table_is_the_table_with_it_and_no_file() -> None:
    root = LAYOUT.root(table("a", "b"))
    edit = folded(LAYOUT, root, news(change("b", 2, None)))
    assert edit is not None
    assert edit == Edit(LAYOUT.root(edit.root.whole or table()), "fold")
    assert edit.root.whole is not None
    assert (edit.root.count, edit.root.revision) == (1, 3)
    assert list(edit.root.whole.entities) == ["a"]
    assert folded(LAYOUT, edit.root, news(change("b", 2, None))) is None, "once is enough"


def test_a_fold_into_a_spread_table_is_one_delta_whatever_the_size() -> None:
    root, _ = spread(*"abcdef")
    edit = folded(LAYOUT, root, news(change("c", 2, "gone")))
    assert edit is not None
    (file,) = edit.files.pieces
    assert edit.root == replace(root, deltas=(file.piece,))
    assert Manifest.decode(file.body, "").entities == {"c": {"status": "gone"}}
    assert folded(LAYOUT, edit.root, news(change("c", 2, "gone"))) is None, "its file has the same name"


def test_a_fold_without_oplog_counts_in_the_root() -> None:
    layout = ManifestLayout(model(oplog=False))
    root = replace(spread(*"abcdef")[0], oplog=False, revision=7)
    edit = folded(layout, root, news(change("c")))
    assert edit is not None
    assert edit.root.revision == 8


def test_a_large_table_is_formed_of_partitions_and_parts_of_its_indexes() -> None:
    whole = table(*"abcdef")
    steps, edit = exhausted(formed(LAYOUT, whole, LAYOUT.root(whole), (), "base"))
    assert [piece.start for piece in edit.root.partitions] == ["", "d"]
    assert Manifest.joined("Customer", parsed(edit.root, steps)).entities == whole.entities
    (new,) = (index for step in steps for index in step.indexes)
    assert new.is_split
    assert new.index == Index.of(whole, LAYOUT.indexes[0])
    assert edit.root.indexes == {"status": new.pieces}
    assert (edit.root.count, edit.root.revision, edit.root.last_updated) == (6, 6, AT)
    check(LAYOUT.root(whole), edit.root, edit.by)


def test_a_table_is_formed_whole_up_to_the_threshold_whatever_it_was_unless_it_is_to_be_spread() -> None:
    small = table(*"abcd")
    assert exhausted(formed(LAYOUT, small, None, (), "source")) == ([], Edit(LAYOUT.root(small), "source"))
    root, _ = spread(*"abcdef")
    assert exhausted(formed(LAYOUT, table(*"abcde"), root, (), "source"))[1].root.is_spread
    assert not exhausted(formed(LAYOUT, small, root, (), "source"))[1].root.is_spread
    busy = exhausted(formed(LAYOUT, small, None, (), "base", spread=True))[1].root
    assert (busy.is_spread, busy.partition_count, busy.count) == (True, 1, 4)


def test_many_partitions_are_listed_in_a_directory() -> None:
    layout = ManifestLayout(model(threshold=1, partitions=100))
    ids = [f"c{number:03d}" for number in range(70)]
    steps, edit = exhausted(formed(layout, table(*ids, layout=layout), None, (), "source"))
    assert not edit.root.partitions
    (file,) = (step.directory for step in steps if step.directory is not None)
    assert edit.root.directory == file.piece
    listed = decode_directory(file.body, "")
    assert len(listed) == edit.root.partition_count == 70
    check(None, edit.root, edit.by, listed=listed)
    with pytest.raises(InvariantBroken, match="adds up"):
        check(None, edit.root, edit.by, listed=listed[1:])


def test_a_base_made_partition_by_partition_is_the_base_of_the_whole_table() -> None:
    root, parts = spread(*"abcdef")
    edit = folded(LAYOUT, root, news(change("c", 2, "x"), change("g")))
    assert edit is not None
    delta = edit.files.pieces[0].value
    merged = [part.merged([delta.part(touched)]) for part, touched in zip(parts, ("c", "g"), strict=True)]
    _, remerged = exhausted(remade(LAYOUT, edit.root, merged, ["", "d"]))
    whole = LAYOUT.finished(Manifest.joined("Customer", merged), edit.root)
    _, formed_whole = exhausted(formed(LAYOUT, whole, edit.root, ["", "d"], "base"))
    assert remerged == formed_whole
    assert not remerged.root.deltas


def test_a_stream_makes_its_files_as_they_are_asked_for() -> None:
    layout = ManifestLayout(model(threshold=1, partitions=16))
    asked: list[str] = []

    def read() -> Iterator[Manifest]:
        for one in "abcdef":
            asked.append(one)
            yield table(one, layout=layout)

    stream = remade(layout, Root("Customer", 6, 0, 6, AT, fields=layout.fields), read(), ["", *"bcdef"])
    first = next(stream)
    assert [file.piece.start for file in first.pieces] == ["", "b"]
    assert asked == ["a", "b", "c"], "one more, to know that b is complete"


def test_deltas_are_merged_only_while_all_of_them_are_there() -> None:
    root, _ = spread(*"abcdef")
    deltas = [LAYOUT.new_file("delta", table(one)) for one in "gh"]
    two = replace(root, deltas=tuple(file.piece for file in deltas))
    merged = LAYOUT.new_file("delta", table(*"gh"), level=1)
    edit = merged_deltas(two, two.deltas, merged)
    assert edit == Edit(replace(root, deltas=(merged.piece,)), "merge", NewFiles([merged]))
    assert merged_deltas(replace(two, deltas=two.deltas[1:]), two.deltas, merged) is None
    assert merged_deltas(None, two.deltas, merged) is None


def test_what_was_folded_since_a_merge_began_stays_a_delta() -> None:
    start, _ = spread(*"abcdef")
    taken, later = (LAYOUT.new_file("delta", table(one)).piece for one in "gh")
    start = replace(start, deltas=(taken,))
    base = replace(spread(*"abcdefg")[0], last_updated="2026-01-02T00:00:00Z")
    root = replace(start, deltas=(taken, later))
    edit = rebased(LAYOUT, root, start, base)
    assert edit == Edit(replace(base, deltas=(later,)), "base")
    assert rebased(LAYOUT, base, start, base) is None, "another base"
    whole = LAYOUT.root(table("a"))
    assert rebased(LAYOUT, root, start, whole) is None, "one file has no place for a delta"
    assert rebased(LAYOUT, start, start, whole) == Edit(whole, "base")
    without = ManifestLayout(model(oplog=False))
    assert rebased(without, replace(root, deltas=(later,)), start, base) is None, "nothing tells which is newer"


def test_heads_are_laid_out_in_the_same_way() -> None:
    layout = HeadsLayout(model())
    heads = Heads("Customer").folded([change(one) for one in "abcdef"])
    assert heads is not None
    steps, edit = exhausted(formed(layout, heads, None, (), "source"))
    assert [file.piece.file for step in steps for file in step.pieces] == [one.file for one in edit.root.partitions]
    assert (edit.root.count, edit.root.revision, edit.root.indexes) == (6, 6, {})
    check(None, edit.root, edit.by)


# What always holds


def piece(name: str, start: str = "", level: int = 0, count: int = 1, size: int = 10) -> Piece:
    return Piece(f"{name}-{sha256(name.encode()).hexdigest()[:16]}.json", count, size, start, level)


PARTS = (piece("partition-0"), piece("partition-1", "m"))
INDEX = IndexPieces("standard", False, (piece("part-0"), piece("part-1", "k")))
DELTAS = (piece("delta-0"), piece("delta-1"))
ROOT: Root[Counted] = Root("Customer", 2, 20, 5, AT, PARTS, DELTAS, indexes={"status": INDEX}, fields=("status",))
WHOLE: Root[Counted] = replace(LAYOUT.root(table("a")), fields=("status",))
DIRECTORY = piece("directory", count=2)

GOOD: list[tuple[Root[Counted] | None, Root[Counted], By]] = [
    (None, ROOT, "source"),
    (None, WHOLE, "fold"),
    (WHOLE, WHOLE, "fold"),
    (WHOLE, replace(ROOT, deltas=()), "base"),
    (ROOT, replace(WHOLE, revision=5), "base"),
    (ROOT, replace(ROOT, deltas=(*DELTAS, piece("delta-2"))), "fold"),
    (ROOT, replace(ROOT, deltas=(*DELTAS, piece("delta-2"), piece("delta-3"))), "folds"),
    (ROOT, replace(ROOT, deltas=(piece("delta", level=1),)), "merge"),
    (ROOT, replace(ROOT, deltas=(replace(DELTAS[0], level=1),)), "merge"),
    (ROOT, replace(ROOT, deltas=DELTAS[1:], revision=6), "base"),
    (ROOT, replace(ROOT, deltas=(piece("delta-9"),), revision=1, fields=("name",)), "source"),
    (ROOT, replace(ROOT, partitions=(), directory=DIRECTORY), "source"),
]


@pytest.mark.parametrize(("old", "new", "by"), GOOD)
def test_what_changes_do_breaks_no_invariant(old: Root[Counted] | None, new: Root[Counted], by: By) -> None:
    check(old, new, by)


def index(*parts: Piece) -> dict[str, IndexPieces]:
    return {"status": IndexPieces("standard", False, parts)}


BROKEN: list[tuple[str, Callable[[Root[Counted]], Root[Counted]], By]] = [
    ("has one form", lambda root: replace(root, directory=DIRECTORY), "source"),
    ("has one form", lambda root: replace(root, partitions=(), count=0, base_size=0), "source"),
    ("has one form", lambda root: replace(WHOLE, revision=9, deltas=DELTAS), "source"),
    ("covers every key once", lambda root: replace(root, partitions=(PARTS[0], piece("p"))), "source"),
    ("covers every key once", lambda root: replace(root, partitions=(piece("p", "a"), PARTS[1])), "source"),
    ("covers every key once", lambda root: replace(root, indexes=index(piece("q", "b"))), "source"),
    ("names each file once", lambda root: replace(root, deltas=(DELTAS[0], DELTAS[0])), "source"),
    ("names each file once", lambda root: replace(root, indexes=index(piece("q"), piece("q", "b"))), "source"),
    ("adds up", lambda root: replace(root, count=3), "source"),
    ("adds up", lambda root: replace(root, base_size=19), "source"),
    ("adds up", lambda root: replace(root, revision=-1), "source"),
    ("adds up", lambda root: replace(root, deltas=(piece("d", size=-1),)), "source"),
    ("keeps the model", lambda root: replace(root, model="Order"), "fold"),
    ("keeps the model", lambda root: replace(root, model="Order"), "base"),
    ("keeps how rows are made", lambda root: replace(root, fields=("name",)), "base"),
    ("keeps how rows are made", lambda root: replace(root, oplog=False), "fold"),
    ("revision does not fall", lambda root: replace(root, revision=4), "base"),
    ("revision does not fall", lambda root: replace(root, revision=4), "fold"),
    ("keeps the base", lambda root: replace(root, partitions=(PARTS[0], piece("other", "m"))), "fold"),
    ("keeps the base", lambda root: replace(root, indexes={}), "fold"),
    ("keeps the base", lambda root: replace(WHOLE, revision=9), "merge"),
    ("loses no delta", lambda root: replace(root, deltas=DELTAS[1:]), "fold"),
    ("loses no delta", lambda root: replace(root, deltas=(*DELTAS, piece("x"), piece("y"))), "fold"),
    ("loses no delta", lambda root: replace(root, deltas=(*DELTAS[1:], piece("x"))), "folds"),
    ("loses no delta", lambda root: replace(root, deltas=DELTAS[1:]), "merge"),
    ("loses no delta", lambda root: replace(root, deltas=(piece("m", level=2),)), "merge"),
    ("loses no delta", lambda root: replace(root, deltas=(piece("m", level=1), piece("n", level=1))), "merge"),
    ("loses no delta", lambda root: replace(root, deltas=(piece("x"),)), "base"),
]


@pytest.mark.parametrize(("said", "change_of", "by"), BROKEN)
def test_a_broken_invariant_is_named_and_nothing_is_written(
    said: str, change_of: Callable[[Root[Counted]], Root[Counted]], by: By
) -> None:
    with pytest.raises(InvariantBroken, match=said):
        check(ROOT, change_of(ROOT), by, key="org/customers/.worm.manifest.json")


def test_the_partitions_that_a_directory_lists_are_checked_too() -> None:
    new = replace(ROOT, partitions=(), directory=DIRECTORY)
    check(None, new, "source", listed=PARTS)
    with pytest.raises(InvariantBroken, match="covers every key once"):
        check(None, new, "source", listed=(PARTS[0], piece("p")))


# Stored shapes


@pytest.mark.parametrize("root", [ROOT, replace(ROOT, partitions=(), directory=DIRECTORY), replace(ROOT, oplog=False)])
def test_a_root_reads_back(root: Root[Counted]) -> None:
    """Without its directory a large table has no partitions: it would be empty."""
    assert Root.of_shape(unseal(root.encode(), "k"), "k") == root


def test_a_piece_names_only_what_it_has() -> None:
    assert Piece("f", 1, 10).shape() == {"file": "f", "count": 1, "bytes": 10}
    assert replace(ROOT, partitions=(), directory=DIRECTORY).scan_size == 10 + 20 + 20
    assert replace(ROOT, partitions=(), directory=replace(DIRECTORY, parquet=3)).scan_size == 10 + 3 + 20


def test_a_manifest_of_another_version_is_corrupt() -> None:
    shape = {**json.loads(Manifest("Customer").encode()), "version": 2}
    shape.pop("checksum")
    with pytest.raises(Corrupt, match="version must be 1, not 2"):
        Manifest.decode(seal(shape), "k")


# Damage, and documents without an oplog


def test_a_damaged_entity_loses_its_seq_and_a_healed_one_its_etag() -> None:
    """With its seq it would look recorded; with its etag a healed one would look damaged."""
    whole = table("a", "b")
    broken = Change("a", None, {"status": "as stored"}, Corrupt("a gap"), "etag-1", AT)
    damaged = whole.folded([broken])
    assert damaged is not None
    assert (damaged.seqs, damaged.etags, damaged.revision) == ({"b": 1}, {"a": "etag-1"}, 1)
    assert damaged.entities["a"] == {"status": "as stored"}
    assert damaged.folded([broken]) is None
    healed = damaged.folded([change("a", 3)])
    assert healed is not None
    assert (healed.seqs, healed.etags, healed.revision) == ({"a": 3, "b": 1}, {}, 4)


def test_documents_without_an_oplog_count_and_an_equal_upload_moves_the_time() -> None:
    first = Manifest("Customer", oplog=False).with_documents({"a": ReadRow(None, "e", AT)})
    assert first is not None
    assert (first.count, first.known) == (0, 1)
    assert first.with_documents({"a": ReadRow(None, "e", AT)}) is None
    later = first.with_documents({"a": ReadRow(None, "e", "2026-01-02T00:00:00Z")})
    assert later is not None
    assert later.last_updated == "2026-01-02T00:00:00Z"


def test_a_fold_of_nothing_is_an_empty_delta() -> None:
    assert news().delta(1) == Manifest("Customer")


# Publishing


def test_a_broken_root_is_not_published() -> None:
    path = spread_path()
    fill(path, 9)
    tree, before = path.table.manifest, root_of(path)
    with pytest.raises(InvariantBroken, match="revision does not fall"):
        tree.publish(lambda root: Edit(replace(before, revision=before.revision - 1), "base"))
    assert root_of(path) == before


def test_a_race_that_is_lost_applies_the_change_to_the_newer_root_and_writes_no_file_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worm.tables.tree.BASE_SHARE", 0)
    path = spread_path()
    fill(path, 9)
    tree = path.table.manifest
    file = tree.layout.new_file("delta", table("c100"))
    seen: list[int] = []

    def slow(root: Root[Manifest] | None) -> Edit[Manifest]:
        assert root is not None
        seen.append(len(root.deltas))
        if len(seen) == 1:
            path.put("c200", {"status": "meanwhile", "tags": []})
            path.settle()
        changed = root.with_delta(file.piece, AT, root.revision)
        assert changed is not None
        return Edit(changed, "fold", NewFiles([file]))

    before = root_of(path)
    tree.publish(slow)
    assert seen == [len(before.deltas), len(before.deltas) + 1]
    assert root_of(path).deltas[-1] == file.piece
    assert len(list(path.store.versions(tree.pieces.key(file.piece.file)))) == 1
    assert {"c100", "c200"} <= path.rows().keys()


def test_what_a_stream_wrote_is_not_kept_in_memory() -> None:
    path = spread_path()
    tree = path.table.manifest
    edit = tree.stored(formed(tree.layout, table(*"abcdef"), None, (), "source"), keep=set())
    assert len(tree.pieces) == 0
    assert {piece.file for piece in edit.root.partitions} <= tree.pieces.listed()
