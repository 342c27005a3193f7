"""Pages of a space in a page store: what is where. Names have no tabs, so a tab separates.

    m                                   the end of the order of commits
    c <seq>                             a commit
    k <session> <local seq>             the seq of the commit that a session made under its number
    r <branch> <id> <seq> <op index>    a revision
    h <branch> <id>                     an entity on a branch: its newest revisions, and where older ones are
    i <branch> <id> <level> <number>    full lists of older revisions; `j` the same of snapshots
    s <branch> <id> <seq>               a snapshot
    b <name>                            a branch
    x <hash>                            a blob: its row, and where its bytes are

Commits, revisions and full lists never change. Everything is found by name; nothing has to be searched through, but for
listings of all branches, blobs or entities.
"""

from __future__ import annotations

NEWEST = "m"
_SEP = "\t"


def commit_page(seq: int) -> str:
    return f"c\t{seq:020d}"


def session_page(session_id: str, local_seq: int) -> str:
    return f"k\t{session_id}\t{local_seq}"


def revision_page(branch: str, id: str, seq: int, op_index: int) -> str:
    return f"r\t{branch}\t{id}\t{seq:020d}\t{op_index}"


def head_page(branch: str, id: str) -> str:
    return f"h\t{branch}\t{id}"


def heads_between(branch: str) -> tuple[str, str]:
    """The range of all heads of a branch."""
    return f"h\t{branch}\t", f"h\t{branch}\n"  # the character after a tab


def list_page(kind: str, branch: str, id: str, level: int, number: int) -> str:
    return f"{kind}\t{branch}\t{id}\t{level}\t{number}"


def snapshot_page(branch: str, id: str, seq: int) -> str:
    return f"s\t{branch}\t{id}\t{seq:020d}"


def branch_page(name: str) -> str:
    return f"b\t{name}"


def blob_page(hash: str) -> str:
    return f"x\t{hash}"


def all_pages(kind: str) -> tuple[str, str]:
    """The range of all pages of one kind."""
    return f"{kind}\t", f"{kind}\n"


def id_of_head(page: str) -> str:
    return page.split(_SEP)[2]
