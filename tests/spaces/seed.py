"""The statements of the original design of spaces, word for word; only `commit`, a word of SQL, is quoted."""

from __future__ import annotations

import re

PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": 1,
    "busy_timeout": 5000,
    "cache_size": -64000,
    "temp_store": 2,
    "mmap_size": 268435456,
    "foreign_keys": 1,
    "page_size": 32768,
}

TABLES = """
CREATE TABLE revision ( branch TEXT NOT NULL DEFAULT '', id TEXT NOT NULL, seq INTEGER NOT NULL,
  op_index INTEGER NOT NULL, op TEXT NOT NULL, data JSON, commit_seq INTEGER NOT NULL,
  PRIMARY KEY (branch, id, seq, op_index), FOREIGN KEY (commit_seq) REFERENCES "commit"(seq) );
CREATE INDEX idx_revision_branch_seq ON revision (branch, seq);
CREATE INDEX idx_revision_entity_seq ON revision (branch, id, seq);
CREATE INDEX idx_revision_commit ON revision (commit_seq);
CREATE TABLE head ( branch TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, op_index INTEGER NOT NULL,
  PRIMARY KEY (branch, id) );
CREATE INDEX idx_head_branch ON head (branch);
CREATE TABLE "commit" ( seq INTEGER NOT NULL PRIMARY KEY, branch TEXT NOT NULL DEFAULT '', session_id TEXT NOT NULL,
  local_seq INTEGER NOT NULL, invocation_ref TEXT, authorization_ref TEXT, original JSON NOT NULL,
  resolution JSON NOT NULL, created_at TEXT NOT NULL DEFAULT (datetime('now')),
  FOREIGN KEY (invocation_ref) REFERENCES invocation(ref),
  FOREIGN KEY (authorization_ref) REFERENCES authorization(ref) );
CREATE INDEX idx_commit_branch ON "commit" (branch);
CREATE UNIQUE INDEX idx_commit_session_local_seq ON "commit" (session_id, local_seq);
CREATE INDEX idx_commit_invocation_ref ON "commit" (invocation_ref);
CREATE TABLE snapshot ( branch TEXT NOT NULL DEFAULT '', id TEXT NOT NULL, seq INTEGER NOT NULL, value JSON NOT NULL,
  PRIMARY KEY (branch, id, seq) );
CREATE INDEX idx_snapshot_lookup ON snapshot (branch, id, seq);
CREATE TABLE branch ( name TEXT NOT NULL PRIMARY KEY, parent_branch TEXT, fork_seq INTEGER,
  created_seq INTEGER NOT NULL, head_seq INTEGER NOT NULL, created_at TEXT NOT NULL DEFAULT (datetime('now')),
  status TEXT NOT NULL DEFAULT 'active' );
CREATE INDEX idx_branch_status ON branch (status);
CREATE INDEX idx_branch_parent ON branch (parent_branch);
CREATE TABLE invocation ( ref TEXT NOT NULL PRIMARY KEY, iss TEXT NOT NULL, aud TEXT, cmd TEXT NOT NULL,
  sub TEXT NOT NULL, invocation JSON NOT NULL, created_at TEXT NOT NULL DEFAULT (datetime('now')) );
CREATE INDEX idx_invocation_sub ON invocation (sub);
CREATE INDEX idx_invocation_cmd ON invocation (cmd);
CREATE INDEX idx_invocation_iss ON invocation (iss);
CREATE TABLE authorization ( ref TEXT NOT NULL PRIMARY KEY, authorization JSON NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now')) );
CREATE TABLE blob_store ( hash TEXT NOT NULL PRIMARY KEY, data BLOB NOT NULL, content_type TEXT, size INTEGER NOT NULL,
  created_at TEXT NOT NULL DEFAULT (datetime('now')) );
CREATE VIEW state AS SELECT branch, id, seq, op_index FROM head;
"""

STATEMENTS = {
    "insert commit (4.2)": """INSERT INTO "commit" ( seq, branch, session_id, local_seq, invocation_ref,
        authorization_ref, original, resolution )
        VALUES ( :seq, :branch, :session_id, :local_seq, NULL, NULL, :original_json, :resolution_json );""",
    "insert revision (4.2)": """INSERT INTO revision (branch, id, seq, op_index, op, data, commit_seq)
        VALUES (:branch, :id, :seq, :op_index, :op, :data_json, :seq);""",
    "upsert head (4.2)": """INSERT INTO head (branch, id, seq, op_index) VALUES (:branch, :id, :seq, :op_index)
        ON CONFLICT (branch, id) DO UPDATE SET seq = excluded.seq, op_index = excluded.op_index;""",
    "head (5.1)": "SELECT seq, op_index FROM head WHERE branch = :branch AND id = :id;",
    "nearest snapshot (5.1)": """SELECT seq, value FROM snapshot WHERE branch = :branch AND id = :id
        AND seq <= :target_seq ORDER BY seq DESC LIMIT 1;""",
    "later revisions (5.1)": """SELECT seq, op_index, op, data FROM revision WHERE branch = :branch AND id = :id
        AND seq > :base_seq AND seq <= :target_seq ORDER BY seq ASC, op_index ASC;""",
    "materialize snapshot (6.2)": """INSERT INTO snapshot (branch, id, seq, value)
        VALUES (:branch, :id, :seq, :value_json) ON CONFLICT (branch, id, seq) DO NOTHING;""",
    "old snapshots (7.2)": """DELETE FROM snapshot WHERE (branch, id, seq) NOT IN (
        SELECT branch, id, MAX(seq) FROM snapshot GROUP BY branch, id );""",
    "create branch (8.1)": """INSERT INTO branch (name, parent_branch, fork_seq, created_seq, head_seq)
        VALUES (:name, :parent_branch, :fork_seq, :created_seq, :created_seq);""",
    "delete branch (8.4)": "UPDATE branch SET status = 'deleted' WHERE name = :name;",
    "write blob (10.1)": """INSERT OR IGNORE INTO blob_store (hash, data, content_type, size)
        VALUES (:hash, :data, :content_type, :size);""",
    "read blob (10.2)": "SELECT data, content_type, size FROM blob_store WHERE hash = :hash;",
}


def normal(sql: str) -> str:
    """Without what makes no difference: blanks, the semicolon."""
    text = re.sub(r"\s+", " ", sql).strip().rstrip(";").strip()
    return re.sub(r" ?([(),]) ?", r"\1", text)


def without_times(sql: str) -> str:
    """Times are given by the clock of the space instead of SQLite's; see decision 0017."""
    return normal(sql).replace(",created_at)", ")").replace(",:created_at)", ")")
