"""Decides how a query is answered, why, and at what cost: from facts, without a request.

Strategies
- `index_lookup`: ids from field indexes (or named by the filter), then those documents;
- `manifest_scan`: all from the rows of the manifest;
- `manifest_targeted`: ids from the rows of the manifest, then those documents;
- `full_scan`: list the keys, read every document.
All give the same rows.

Rules of choice, in this order
1. An index lookup if the manifest alone cannot answer, or if the filter names at most `PROMISED` ids or values of a
   unique index, or if the manifest is spread over files that are not read yet. It is dropped if it names more
   documents than a scan needs GETs; or, if the manifest cannot answer alone, more than `FEW` and the manifest may name
   fewer.
2. A manifest scan if the manifest has all fields.
3. The manifest and the documents that it names, if it has the fields of the filter (or of its required parts).
4. A full scan.
If a manifest or an index is missing, damaged or stale, the next rule applies, and the answer is the same.

`decide` is a function of `Facts`. If a rule needs an unknown fact, the answer is a `Question` instead of a `Decision`.
Execution looks up the fact and calls it again (`execute.py`), so nothing is read unless a rule needs it.

Estimates are for a session with nothing in memory. They use only the root of the manifest, so they do not change while
it stays the same: a manifest in one file has the rows, which are counted; a partitioned one has the sizes of its files.
Without a manifest, the collection's sentinel has the count if folds maintain it; otherwise `ASSUMED_COUNT` documents
are assumed, and the plan says so. Nothing is known about the results of an index: a value of a unique one counts as one
document, everything else as `ASSUMED_MATCHES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Literal

from worm.errors import Hint, Invalid
from worm.formats import JsonValue
from worm.query.needs import Lookup, Needs, Strategy, leaves
from worm.tables import COMMON_IDS, Size
from worm.values import dataclass

PROMISED = 10
"""A lookup of at most this many ids is made even if one GET of the manifest would do."""
FEW = 100
"""A lookup with more ids is dropped if the manifest may name fewer documents."""
INDEX_GETS = 2
"""For a partitioned index, in addition to what a scan reads: the root again, and one part."""
GET_BYTES = 256 << 10
"""Bytes that take about as long as one more of many concurrent GETs."""
ASSUMED_MATCHES = 10
"""For an index that is not unique, before it is read."""
ENTRY_BYTES = 40
"""Index bytes per document."""
LIST_PAGE = 1000
UNUSABLE = "the manifest is missing, damaged or behind"
REBUILD = "run `worm table rebuild` to rebuild it"
COVERED = "the manifest has all needed fields"
FORCED = "forced by the caller"
CUT = "values that are too large for the manifest are read from documents"
TOLD_BEHIND = "the manifest was behind when its status was checked"

Question = Literal["root", "ids", "rows"]
"""A fact that a rule needs: the root of the manifest, the ids of the lookup, or the rows."""


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """The root of a usable manifest: the files that a scan still has to read, and the sizes."""

    missing: int
    size: Size

    @property
    def weight(self) -> int:
        """The cost of reading the rows in this session, in GETs: the remaining ones, plus a share for their bytes."""
        return self.missing + self.size.manifest_bytes * self.missing // (1 + self.size.files) // GET_BYTES


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when a choice is made. `asked`: the questions that were answered; the answers of the others are
    unknown. `only_root`: to explain, no other question may be asked."""

    needs: Needs
    only_root: bool = False
    asked: frozenset[Question] = frozenset()
    root: ScanFacts | None = None
    """None: the manifest is missing, damaged, stale or behind."""
    ids: int | None = None
    """How many ids the lookup has, including own writes. None: the indexes cannot answer."""
    rows: bool = False
    """Could they be read?"""

    def scan(self) -> ScanFacts | None:
        self._need("root")
        return self.root

    def found(self) -> int | None:
        self._need("ids")
        return self.ids

    def has_rows(self) -> bool:
        if self.scan() is None or self.only_root:
            return self.root is not None
        self._need("rows")
        return self.rows

    def _need(self, question: Question) -> None:
        if question not in self.asked:
            raise _Unknown(question)


class _Unknown(Exception):
    """A rule needs this fact."""

    def __init__(self, question: Question) -> None:
        self.question = question


@dataclass(frozen=True, slots=True)
class Decision:
    """The strategy, and why."""

    strategy: Strategy
    reason: str


def decide(facts: Facts) -> Decision | Question:
    """For an answer in one piece."""
    try:
        forced = facts.needs.request.strategy
        if forced is not None:
            return _forced(facts, forced)
        return _by_index(facts) or _by_manifest(facts) or _by_documents(facts.needs)
    except _Unknown as unknown:
        return unknown.question


def decide_stream(facts: Facts) -> Decision | Question:
    """For a reader that holds part of the rows at a time: a lookup if the filter itself names at most `FEW` ids, or if
    the manifest cannot answer; else the manifest; else all documents."""
    needs, lookup = facts.needs, facts.needs.lookup
    try:
        is_looked_up = lookup is not None and (needs.lacks is not None or _is_promising(lookup, FEW))
        if lookup is not None and is_looked_up and facts.found() is not None:
            return Decision("index_lookup", _why_looked_up(lookup))
        if needs.lacks is None and facts.scan() is not None:
            return Decision("manifest_scan", COVERED)
        return Decision("full_scan", needs.lacks or UNUSABLE)
    except _Unknown as unknown:
        return unknown.question


def _by_index(facts: Facts) -> Decision | None:
    lookup = facts.needs.lookup
    if lookup is None or ("ids" not in facts.asked and _is_scan_cheaper(facts, lookup)):
        return None
    if not facts.only_root:
        found = facts.found()
        if found is None or _is_left(facts, lookup, found):
            return None
    return Decision("index_lookup", _why_looked_up(lookup))


def _is_scan_cheaper(facts: Facts, lookup: Lookup) -> bool:
    """Before the lookup: can the manifest answer alone, with no more GETs than the index itself takes?"""
    if facts.needs.lacks is not None or _is_promising(lookup, PROMISED):
        return False
    return (scan := facts.scan()) is not None and scan.weight <= INDEX_GETS * len(lookup.names)


def _is_left(facts: Facts, lookup: Lookup, found: int) -> bool:
    """After the lookup: can the manifest answer with fewer GETs, or may it name fewer documents?"""
    needs = facts.needs
    read = _to_read(needs, lookup, found)
    if needs.lacks is None:
        if read <= PROMISED and _is_promising(lookup, PROMISED):
            return False  # it would take a GET to know
        return (scan := facts.scan()) is not None and read > scan.weight
    if read <= FEW or needs.narrowing is None or facts.scan() is None:
        return False
    pages = needs.orders and needs.request.query.limit is not None
    return pages or not needs.narrowing.fields <= lookup.fields


def _to_read(needs: Needs, lookup: Lookup, found: int) -> int:
    """How many documents of a lookup a page needs."""
    query = needs.request.query
    if query.limit is None or query.sort or not needs.filter.fields <= lookup.fields:
        return found
    return min(found, query.offset + query.limit + 1)


def _by_manifest(facts: Facts) -> Decision | None:
    needs = facts.needs
    if needs.narrowing is None or not facts.has_rows():
        return None
    if needs.lacks is None:
        return Decision("manifest_scan", COVERED)
    return Decision("manifest_targeted", f"the manifest names the documents to read: {needs.lacks}")


def _by_documents(needs: Needs) -> Decision:
    return Decision("full_scan", UNUSABLE if needs.narrowing is not None else needs.lacks or UNUSABLE)


def _forced(facts: Facts, strategy: Strategy) -> Decision:
    needs = facts.needs
    if strategy == "index_lookup":
        _check_lookup(facts)
    elif strategy != "full_scan":
        is_obstacle = strategy == "manifest_scan" or needs.narrowing is None
        if is_obstacle and needs.lacks is not None:
            raise Invalid(f"{strategy} is not possible: {needs.lacks}", path="strategy")
        if not facts.has_rows():
            hint = Hint("call build_manifest() to rebuild it", REBUILD)
            raise Invalid(f"{strategy} is not possible: {UNUSABLE}", path="strategy", hint=hint)
    return Decision(strategy, FORCED)


def _check_lookup(facts: Facts) -> None:
    """`Invalid` if a lookup is not possible."""
    lookup = facts.needs.lookup
    if lookup is None:
        known = ", ".join(f"{name} ({index.field})" for name, index in facts.needs.definition.indexes.items())
        raise Invalid(
            "index_lookup is not possible: no index can answer this filter",
            path="strategy",
            hint=f"indexes: {known or 'none'}; they answer $eq, $in and, for arrays, $contains",
        )
    if not facts.only_root and facts.found() is None:
        raise Invalid(
            f"index_lookup is not possible: {', '.join(lookup.names)} is missing, damaged or has another definition, "
            f"or a value is on more than {COMMON_IDS:,} documents",
            path="strategy",
            hint=Hint("leave the strategy out; for the first three, call build_indexes() to rebuild it", REBUILD),
        )


def _is_promising(lookup: Lookup, most: int) -> bool:
    """Does the filter itself name at most this many ids or values of a unique index?"""
    return lookup.most is not None and lookup.most <= most


def _why_looked_up(lookup: Lookup) -> str:
    if not lookup.names:
        return "the filter names the ids"
    names = ", ".join(lookup.names)
    return f"index {names} answers the filter" if len(lookup.names) == 1 else f"indexes {names} answer the filter"


# Costs

USD_PER_1000: Mapping[str, float] = MappingProxyType(
    {"GET": 0.0004, "HEAD": 0.0004, "PUT": 0.005, "LIST": 0.005, "VERSIONS": 0.005, "DELETE": 0.0}
)
"""List prices of S3 Standard in us-east-1 (aws.amazon.com/s3/pricing, as of November 2026), US dollars per 1,000
requests. Requests only: transfer inside a region is free, and the price of other transfer depends on its
destination."""


def usd(requests: Mapping[str, int]) -> float:
    """The price of requests by kind, in the kinds of `RequestCounter`."""
    return round(sum(USD_PER_1000[kind] * count for kind, count in requests.items()) / 1000, 9)


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests by kind and bytes read."""

    requests: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    @property
    def usd(self) -> float:
        return usd(self.requests)

    def __add__(self, other: Cost) -> Cost:
        return Cost(dict(Counter(self.requests) + Counter(other.requests)), self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Actual:
    """The actual cost of a run."""

    cost: Cost
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The strategy of one query. `indexes` are the names of those that are looked up; `as_of`: the newest change in the
    manifest that is used ("": none); `assumed`: the number of documents that the estimate assumes, because the model
    has no count.

    Examples:
        >>> plan = customers.explain({"status": "active"})
        >>> plan.strategy, plan.indexes
        ('manifest_scan', ())
    """

    strategy: Strategy
    reason: str
    estimate: Cost
    manifest_fields: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    actual: Actual | None = None
    as_of: str | None = None
    assumed: int | None = None

    @property
    def misses_manifest(self) -> bool:
        """Was every document read because the model's manifest cannot be used? Rebuilding it helps."""
        return self.reason == UNUSABLE

    def __repr__(self) -> str:
        took = "" if self.actual is None else f"; took {_spent(self.actual.cost)}, rows: {self.actual.rows:,}"
        return f"<Plan {self.strategy}: {self.reason}; estimated {_spent(self.estimate)}{took}>"

    def _repr_html_(self) -> str:
        """For notebooks: strategy, reason and cost."""
        from html import escape  # slow to import, and no worker needs it

        facts = {"strategy": self.strategy, "reason": self.reason, "estimate": _spent(self.estimate)}
        if self.indexes:
            facts["indexes"] = ", ".join(self.indexes)
        if self.actual is not None:
            facts |= {"actual": _spent(self.actual.cost), "rows": f"{self.actual.rows:,}"}
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts.items())
        return f"<table><caption>Plan</caption><tbody>{rows}</tbody></table>"

    def shape(self) -> dict[str, JsonValue]:
        """For JSON, with the names of the wire."""
        shape: dict[str, JsonValue] = {
            "strategy": self.strategy,
            "reason": self.reason,
            "estimatedRequests": self.estimate.total,
            "estimatedBytes": self.estimate.bytes,
            "estimatedUsd": self.estimate.usd,
            "manifestFields": list(self.manifest_fields),
        }
        if self.assumed is not None:
            shape["assumedDocuments"] = self.assumed
        if self.as_of:
            shape["manifestAsOf"] = self.as_of
        if self.indexes:
            shape["indexes"] = list(self.indexes)
        if self.actual is not None:
            shape |= {
                "actualRequests": self.actual.cost.total,
                "actualBytes": self.actual.cost.bytes,
                "actualRows": self.actual.rows,
                "actualUsd": self.actual.cost.usd,
            }
        return shape


def add_actual(plan: Plan, requests: Mapping[str, int], bytes_read: int, rows: int) -> Plan:
    """The plan with what a run really took, and how many rows it gave."""
    return replace(plan, actual=Actual(Cost(dict(requests), bytes_read), rows))


def _spent(cost: Cost) -> str:
    requests = "1 request" if cost.total == 1 else f"{cost.total:,} requests"
    return f"{requests}, {cost.bytes:,} bytes, {cost.usd:.7f} USD"


def estimate(needs: Needs, strategy: Strategy, size: Size, read: int | None = None) -> Cost:
    """The cost of the strategy; `read` is the number of documents, if known."""
    if strategy == "manifest_scan":
        cut, each = read or 0, max(size.each, needs.definition.manifest.max_field_bytes)
        return _manifest(size) + Cost({"GET": cut} if cut else {}, cut * each)
    documents = _expected(needs, strategy, size) if read is None else read
    return _first(needs, strategy, size) + _documents(needs, documents, size)


def _first(needs: Needs, strategy: Strategy, size: Size) -> Cost:
    """Before any document."""
    if strategy == "manifest_targeted":
        return _manifest(size)
    if strategy == "full_scan":  # ids that sort before the collection's own files are listed separately
        return Cost({"VERSIONS": 1 + max(1, -(-size.count // LIST_PAGE))})
    indexes = () if needs.lookup is None else leaves(needs.lookup)
    if not size.is_partitioned or not indexes:
        return Cost({"GET": len(indexes)}, len(indexes) * size.count * ENTRY_BYTES)
    # The file of the first index (which says that there are parts), the root for each, the parts of the values, and
    # all deltas.
    parts = [part for one in indexes for part in size.index_parts(one.index.field, one.values)]
    gets = 1 + len(indexes) + len(parts) + size.deltas
    return Cost({"GET": gets}, size.root_bytes + sum(parts) + size.delta_bytes)


def _manifest(size: Size) -> Cost:
    """The cost of all rows."""
    return Cost({"GET": 1 + size.files}, size.manifest_bytes)


def _documents(needs: Needs, read: int, size: Size) -> Cost:
    """These documents, and one more for every row and populated field."""
    query = needs.request.query
    rows = min(read, _found(needs, size.count))
    rows = rows if query.limit is None else min(rows, query.limit)
    referred = rows * len(needs.request.populate)
    assumed = Size().each  # nothing is known about the collections of populated documents
    return Cost({"GET": read + referred}, read * size.each + referred * assumed)


def _expected(needs: Needs, strategy: Strategy, size: Size) -> int:
    """How many documents will be read, before anything is looked up."""
    query, lookup = needs.request.query, needs.lookup
    enough = None if query.limit is None or query.sort else query.offset + query.limit + 1
    if strategy == "full_scan":
        is_sure = not needs.filter.fields
        expected = size.count
    elif strategy == "index_lookup" and lookup is not None:
        is_sure = needs.filter.fields <= lookup.fields
        expected = _found(needs, size.count) if lookup.most is None else lookup.most
    else:
        is_sure = needs.narrowing is needs.filter
        expected = _found(needs, size.count)
        if needs.orders and query.limit is not None:  # rows before the page need no document
            return min(max(0, expected - query.offset), query.limit)
    return expected if enough is None or not is_sure else min(expected, enough)


def _found(needs: Needs, count: int) -> int:
    """How many documents the filter finds."""
    everything = count or ASSUMED_MATCHES
    return everything if not needs.filter.fields else min(everything, ASSUMED_MATCHES)
