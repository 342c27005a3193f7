"""A batch of rows as pages: everything that one commit writes, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worm.codec.strict_json import JsonObject, dumps
from worm.spaces import page_names as names
from worm.spaces.page_lists import SNAPSHOTS, Growing, Item
from worm.spaces.page_reads import OPS, Head, PageReads, encode_commit
from worm.spaces.rows import Batch, BlobRow, SnapshotRow

Pages = dict[str, bytes | None]


def pages_of(batch: Batch, reads: PageReads) -> Pages:
    """The pages of a commit; `reads` must see everything before it."""
    commit, branch = batch.commit, batch.commit.branch
    pages: Pages = {
        names.NEWEST: dumps({"seq": commit.seq, "createdAt": commit.created_at}),
        names.commit_page(commit.seq): encode_commit(commit, (row.id for row in batch.revisions)),
        names.session_page(commit.session_id, commit.local_seq): dumps({"seq": commit.seq}),
        names.branch_page(batch.branch.name): dumps({**batch.branch._asdict()}),
    }
    heads = reads.heads_of(branch, [row.id for row in batch.revisions])
    for row in batch.revisions:
        head = heads.setdefault(row.id, Head(first=row.seq))
        if row.data is not None:
            pages[names.revision_page(branch, row.id, row.seq, row.op_index)] = row.data.encode()
        _add(pages, head.revisions, "i", branch, row.id, [row.seq, row.op_index, OPS.index(row.op)])
    for snapshot in batch.snapshots:
        _add_snapshot(pages, heads[snapshot.id], snapshot)
    for entity, head in heads.items():
        pages[names.head_page(branch, entity)] = head.encode()
    return pages


def _add_snapshot(pages: Pages, head: Head, row: SnapshotRow) -> None:
    """A snapshot behind those that are there."""
    pages[names.snapshot_page(row.branch, row.id, row.seq)] = row.value.encode()
    _add(pages, head.snapshots, "j", row.branch, row.id, [row.seq])
    later = sum(item[0] > row.seq for item in head.revisions.levels[0])
    head.snapped = max(head.snapped, head.revisions.count - later)


def put_snapshot(pages: Pages, head: Head, row: SnapshotRow, seqs: list[int]) -> None:
    """A snapshot among those that are there, which have these seqs; they have it, too, after that."""
    if not seqs or row.seq > seqs[-1]:
        _add_snapshot(pages, head, row)
        seqs.append(row.seq)
        return
    seqs.append(row.seq)
    seqs.sort()
    pages[names.snapshot_page(row.branch, row.id, row.seq)] = row.value.encode()
    _listed(pages, head, row.branch, row.id, seqs)


def kept_snapshots(pages: Pages, head: Head, branch: str, id: str, seqs: Sequence[int], keep: int) -> int:
    """Of all snapshots of an entity, given by their seqs, the newest `keep`; how many went."""
    gone = seqs[:-keep]
    for seq in gone:
        pages[names.snapshot_page(branch, id, seq)] = None
    _listed(pages, head, branch, id, seqs[-keep:])
    return len(gone)


def _listed(pages: Pages, head: Head, branch: str, id: str, seqs: Iterable[int]) -> None:
    """The list of snapshots, written anew."""
    head.snapshots = Growing(fanout=SNAPSHOTS)
    for seq in seqs:
        _add(pages, head.snapshots, "j", branch, id, [seq])


def blob_shape(row: BlobRow, place: str) -> bytes:
    shape: JsonObject = {**row._asdict(), "place": place}
    return dumps(shape)


def _add(pages: Pages, growing: Growing, kind: str, branch: str, id: str, item: Item) -> None:
    for level, number, items in growing.add(item):
        pages[names.list_page(kind, branch, id, level, number)] = _list(items)


def _list(items: Iterable[Item]) -> bytes:
    return dumps({"items": [[*item] for item in items]})
