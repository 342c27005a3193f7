"""How answers are displayed: as a table in a notebook (`_repr_html_`), as a short list in a terminal (`repr`).

The HTML is plain: a table with a caption, no style, no script. Every text in it is escaped. The same answer gives the
same HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from worm.collections import OplogEntry
from worm.formats import JsonValue, Missing, dumps, field_value

ROWS_MAX = 50
COLUMNS_MAX = 20
TEXT_MAX = 200
LISTED_MAX = 20
NO_FIELD = "(none)"


def list_repr(name: str, items: Sequence[object], cursor: str | None) -> str:
    """`Rows([{…}, {…}], count=2)`: the first items, how many there are, and the cursor if there is one."""
    shown = [repr(item) for item in items[:LISTED_MAX]]
    if len(items) > LISTED_MAX:
        shown.append(f"… {len(items) - LISTED_MAX:,} more")
    more = "" if cursor is None else f", cursor={cursor!r}"
    return f"{name}([{', '.join(shown)}], count={len(items)}{more})"


def rows_html(names: Sequence[str], records: Sequence[Mapping[str, JsonValue]], cursor: str | None) -> str:
    """The first rows, with every column that one of them has."""
    shown = records[:ROWS_MAX]
    used = [name for name in names if any(not isinstance(field_value(one, name), Missing) for one in shown)]
    columns = used[:COLUMNS_MAX]
    rows = [[_shown(field_value(record, name)) for name in columns] for record in shown]
    notes = [_count(len(records), "row")]
    if len(used) > len(columns):
        notes.append(f"{len(used) - len(columns)} more columns: {', '.join(used[COLUMNS_MAX:])}")
    return table_html(columns, rows, [*notes, *_more(len(records), cursor)])


def document_html(
    fields: Mapping[str, JsonValue], *, model: str | None = None, version: str | None = None, seq: int | None = None
) -> str:
    """Field and value, with the version if it was read."""
    facts = {"": model, "version ": version, "seq ": None if seq is None else str(seq)}
    notes = [f"{name}{value}" for name, value in facts.items() if value is not None]
    return table_html(("field", "value"), [[name, _shown(value)] for name, value in fields.items()], notes)


def history_html(entries: Sequence[OplogEntry], *, cursor: str | None = None, damages: int = 0) -> str:
    """One row per entry. Model and id are columns if the entries belong to several documents."""
    shown = entries[:ROWS_MAX]
    named = any(hasattr(entry, "model") for entry in shown)
    columns = ["seq", "op", "time", "actor", "reason", "change"]
    rows = [
        [str(one.seq), one.op, one.ts, _cut(one.actor or ""), _cut(one.reason or ""), _cut(change_text(one, _shown))]
        for one in shown
    ]
    if named:
        columns = ["model", "id", *columns]
        rows = [[getattr(one, "model", ""), getattr(one, "id", ""), *row] for one, row in zip(shown, rows, strict=True)]
    notes = [_count(len(entries), "entry"), *_more(len(entries), cursor)]
    return table_html(columns, rows, [*notes, *([f"{damages} could not be read: see .damages"] if damages else [])])


def change_text(entry: OplogEntry, show: Callable[[JsonValue], str]) -> str:
    """What an entry changed: each field before and after, or the fields of a whole document. Every save changes
    `updatedAt`, and the entry has its time, so that is shown only where nothing else changed."""
    if entry.diff is None:
        return f"{_count(len(entry.snapshot or {}), 'field')}: {', '.join(entry.snapshot or {})}"
    absent = entry.absent or {}
    parts = []
    for name in sorted(entry.diff.keys() - {"updatedAt"}) or entry.diff:
        before, after = entry.diff[name]
        old = NO_FIELD if name in absent.get("before", ()) else show(before)
        new = NO_FIELD if name in absent.get("after", ()) else show(after)
        parts.append(f"{name}: {old} → {new}")
    return "; ".join(parts) or "no field changed"


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A table of texts, which are escaped here."""
    from html import escape  # it loads the names of all characters, which commands do not need

    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    caption = f"<caption>{escape('; '.join(notes))}</caption>" if notes else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _more(count: int, cursor: str | None) -> list[str]:
    hidden = [f"{count - ROWS_MAX:,} more"] if count > ROWS_MAX else []
    return hidden if cursor is None else [*hidden, "the next page has a cursor"]


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _shown(value: JsonValue | Missing) -> str:
    """Text as it is, everything else as JSON; nothing for a missing field."""
    if isinstance(value, Missing):
        return ""
    return _cut(value if isinstance(value, str) else dumps(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
