"""Regular expressions with bounded time: the patterns of `$regex`.

A filter may come from anybody, and Python's `re` backtracks: `(a+)+$` on forty letters takes years. Here a pattern
becomes a graph of states (Thompson's construction), and a text is read once from left to right with the set of possible
states. The sets are cached, so a typical text takes one dictionary lookup per character. There is no backtracking.

There are three limits: `PATTERN_MAX` characters of a pattern, `STATES_MAX` states after counted repeats are expanded,
and `WORK_MAX` uncached steps over the life of a pattern. Only malicious patterns reach the last one. It is counted and
not timed, so the same data gives the same answer everywhere.

The syntax is that of `re`, without what needs backtracking (backreferences, lookaround, atomic groups, possessive
repeats) and without flags inside the pattern. Only the existence of a match matters, so groups and lazy repeats are
accepted and make no difference. `re` itself decides whether one character fits a class, a category or a letter in
either case, with a pattern for one character.

It is a language with its own grammar, which `filters.py` only calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TypeAlias

from worm.errors import Invalid, show
from worm.values import dataclass

PATTERN_MAX = 1_000
GROUPS_MAX = 32
STATES_MAX = 1_000
WORK_MAX = 1_000_000
_KEPT_MAX = 200_000  # states in sets
_CHARACTERS_KEPT_MAX = 100_000

OPTIONS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}

_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_REPEAT = re.compile(r"\{(?!\})(\d*)(?:(,)(\d*))?\}")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_NESTED = re.compile(r"(?<!\\)(?:\\\\)*(\[|--|&&|~~|\|\|)")
_PLACES = {"^": "start of line", "$": "end of line", "\\A": "start", "\\Z": "end", "\\b": "edge", "\\B": "no edge"}
_WORD = re.compile(r"\w")

Test: TypeAlias = Callable[[str], object]


# The parts of a pattern


@dataclass(frozen=True, slots=True)
class _One:
    """One character, by the text of its pattern."""

    text: str


@dataclass(frozen=True, slots=True)
class _At:
    """A place between two characters."""

    place: str


@dataclass(frozen=True, slots=True)
class _Chain:
    """One after the other."""

    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """One of them."""

    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Repeated from `least` to `most` times; `most` None: unlimited."""

    part: _Part
    least: int
    most: int | None


_Part: TypeAlias = "_One | _At | _Chain | _Choice | _Repeated"


class _Reader:
    """One pass over the text of a pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> _Part:
        part = self._choice(0)
        if self._at < len(self._text):
            raise self.refused("unbalanced parenthesis")
        return part

    def refused(self, problem: str, hint: str | None = None) -> Invalid:
        return Invalid(f"{problem} at character {self._at + 1} of the pattern", hint=hint)

    def _choice(self, depth: int) -> _Part:
        parts = [self._chain(depth)]
        while self._text.startswith("|", self._at):
            self._at += 1
            parts.append(self._chain(depth))
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _chain(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._item(depth)))
        return _Chain(tuple(parts))

    def _item(self, depth: int) -> _Part:
        text, at = self._text, self._at
        if text[at] == "(":
            return self._group(depth)
        if text[at] in "*+?" or _REPEAT.match(text, at):
            raise self.refused("nothing to repeat", "escape a literal sign with a backslash")
        if text[at] == "[":
            return self._class()
        if text[at] == "\\":
            return self._escape()
        self._at += 1
        return _At(_PLACES[text[at]]) if text[at] in "^$" else _One(re.escape(text[at]) if text[at] != "." else ".")

    def _group(self, depth: int) -> _Part:
        opening = _GROUP.match(self._text, self._at)
        if opening is None:
            hint = "lookaround, atomic groups, comments and flags are not supported; flags go into $options"
            raise self.refused("this kind of group is not supported", hint)
        if depth >= GROUPS_MAX:
            raise self.refused(f"more than {GROUPS_MAX} nested groups")
        self._at = opening.end()
        part = self._choice(depth + 1)
        if not self._text.startswith(")", self._at):
            raise self.refused("a parenthesis is not closed")
        self._at += 1
        return part

    def _class(self) -> _Part:
        found = _CLASS.match(self._text, self._at)
        if found is None:
            raise self.refused("a bracket is not closed")
        if _NESTED.search(found[0][1:]):
            raise self.refused("[, --, &&, ~~ or || inside brackets", "escape the sign with a backslash")
        self._at = found.end()
        return _One(found[0])

    def _escape(self) -> _Part:
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            raise self.refused("a backslash without anything after it")
        if found[0][1] in "0123456789":
            hint = "backreferences are not supported; write a character by its number as \\x41"
            raise self.refused(f"{found[0]} is not supported", hint)
        self._at = found.end()
        return _At(_PLACES[found[0]]) if found[0] in _PLACES else _One(found[0])

    def _repeated(self, part: _Part) -> _Part:
        counted = self._counts()
        if counted is None:
            return part
        if isinstance(part, _At):
            raise self.refused("nothing to repeat")
        if self._text.startswith("?", self._at):  # lazy: it does not change whether there is a match
            self._at += 1
        elif self._text.startswith("+", self._at):
            raise self.refused("possessive repeats are not supported")
        if self._counts() is not None:
            raise self.refused("a repeat of a repeat", "put the inner one into parentheses")
        least, most = counted
        return _Repeated(part, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        sign = self._text[self._at : self._at + 1]
        if sign and sign in "*+?":
            self._at += 1
            return (1 if sign == "+" else 0), (1 if sign == "?" else None)
        found = _REPEAT.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        if max(len(found[1]), len(found[3] or "")) > len(str(STATES_MAX)):
            raise _too_large()
        least = int(found[1] or 0)
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self.refused(f"{found[0]} ends before it starts")
        return least, most


def _too_large() -> Invalid:
    return Invalid(
        f"the pattern has more than {STATES_MAX:,} states",
        hint="counted repeats such as {100} are expanded; use smaller ones, or + and *",
    )


# The graph


@dataclass(slots=True)
class _State:
    """A state: either a test of the next character leads on, or free steps do, one of which may need a place.

    `test` numbers the tests of the pattern; -1: none."""

    test: int = -1
    place: str | None = None
    ways: list[int] = field(default_factory=list)


class _Graph:
    """The states of a pattern. 0 is the start, `end` means that it has matched."""

    def __init__(self, part: _Part) -> None:
        self.tests: dict[str, int] = {}
        self.states: list[_State] = []
        if _size(part) > STATES_MAX:
            raise _too_large()
        start = self._state()
        self.end = self._build(part, start)

    def _state(self) -> int:
        self.states.append(_State())
        return len(self.states) - 1

    def _build(self, part: _Part, start: int) -> int:
        """Adds the states of the part from `start`, which has no steps yet; returns where they end."""
        if isinstance(part, _Chain):
            for one in part.parts:
                start = self._build(one, start)
            return start
        if isinstance(part, _Choice):
            return self._choice(part, start)
        if isinstance(part, _Repeated):
            return self._repeat(part, start)
        end, state = self._state(), self.states[start]
        if isinstance(part, _At):
            state.place = part.place
        else:
            state.test = self.tests.setdefault(part.text, len(self.tests))
        state.ways = [end]
        return end

    def _choice(self, part: _Choice, start: int) -> int:
        end = self._state()
        for one in part.parts:
            first = self._state()
            self.states[start].ways.append(first)
            self.states[self._build(one, first)].ways.append(end)
        return end

    def _repeat(self, part: _Repeated, start: int) -> int:
        for _ in range(part.least):
            start = self._build(part.part, start)
        end = self._state()
        if part.most is None:
            first = self._state()
            self.states[start].ways += [first, end]
            self.states[self._build(part.part, first)].ways += [start]
            return end
        for _ in range(part.most - part.least):
            first = self._state()
            self.states[start].ways += [first, end]
            start = self._build(part.part, first)
        self.states[start].ways.append(end)
        return end


def _size(part: _Part) -> int:
    """The number of states, counted before any is created; at least one, so that repeats of nothing end too."""
    if isinstance(part, _One | _At):
        return 1
    if isinstance(part, _Repeated):
        one, most = _size(part.part), part.least + 1 if part.most is None else part.most
        return part.least * one + (most - part.least) * (one + 1) + 1
    if isinstance(part, _Choice):
        return sum(1 + _size(one) for one in part.parts) + 1
    return max(1, sum(map(_size, part.parts)))


# Reading a text

_START, _NEWLINE, _LETTER, _OTHER, _LAST_NEWLINE, _END = range(6)
"""What is on either side of a place: the start, a newline, a letter (or digit or underscore), another character, a
newline that is the last character, the end."""


class _Known:
    """A set of states before a character, with what came before; and the known sets that follow."""

    __slots__ = ("before", "moves", "states")

    def __init__(self, states: frozenset[int], before: int) -> None:
        self.states = states
        self.before = before
        self.moves: dict[str, _Known | None] = {}


class Pattern:
    """A compiled pattern. `Invalid`, with the place, for anything unsupported."""

    def __init__(self, text: str, options: str = "") -> None:
        if len(text) > PATTERN_MAX:
            raise Invalid(f"the pattern has {len(text):,} characters, and the limit is {PATTERN_MAX:,}")
        flags = re.NOFLAG
        for option in options:
            flags |= OPTIONS[option]
        self._is_multiline = "m" in options
        self._work = 0
        graph = _Graph(_Reader(text).read())
        self._states, self._end = graph.states, graph.end
        self._tests = [_single(one, flags) for one in graph.tests]
        self._kinds: dict[tuple[bool, ...], str] = {}
        self._meaning: dict[str, tuple[frozenset[int], int]] = {}
        self._letters = _Letters(self._symbol)
        self._final = self._symbol("\n", _LAST_NEWLINE)
        self._stop = self._symbol(None, _END)
        self._known: dict[tuple[frozenset[int], int], _Known] = {}
        self._kept = 0

    def search(self, text: str) -> bool:
        """Does it match anywhere in the text?"""
        state = self._state(frozenset(), _START)
        for symbol in self._symbols(text):
            try:
                following = state.moves[symbol]
            except KeyError:
                following = self._move(state, symbol)
            if following is None:
                return True
            state = following
        return False

    def _symbols(self, text: str) -> str:
        """Characters that no part of the pattern distinguishes have the same symbol."""
        if text.endswith("\n"):
            return text[:-1].translate(self._letters) + self._final + self._stop
        return text.translate(self._letters) + self._stop

    def _symbol(self, character: str | None, kind: int | None = None) -> str:
        fits = tuple(character is not None and bool(test(character)) for test in self._tests)
        self._spend(1 + len(fits))
        if kind is None:
            kind = _NEWLINE if character == "\n" else _LETTER if _WORD.match(character or "") else _OTHER
        signature = (*fits, *(kind == one for one in range(_END + 1)))
        if signature not in self._kinds:
            symbol = chr(len(self._kinds))
            self._kinds[signature] = symbol
            self._meaning[symbol] = frozenset(at for at, fit in enumerate(fits) if fit), kind
        return self._kinds[signature]

    def _move(self, state: _Known, symbol: str) -> _Known | None:
        """The set after this character; None if the pattern has matched before it."""
        fits, kind = self._meaning[symbol]
        reached = self._reached(state, kind)
        if self._end in reached:
            following = None
        else:
            found = (self._states[at] for at in reached)
            following = self._state(frozenset(one.ways[0] for one in found if one.test in fits), kind)
        self._kept += 1 + len(state.states)
        if self._kept > _KEPT_MAX:  # the cache is dropped and rebuilt
            self._known, self._kept = {}, 0
        state.moves[symbol] = following
        return following

    def _state(self, states: frozenset[int], before: int) -> _Known:
        found = self._known.get((states, before))
        if found is None:
            found = self._known[states, before] = _Known(states, before)
        return found

    def _reached(self, state: _Known, kind: int) -> set[int]:
        """The states that free steps reach at a place with these two sides. A match may start at any place."""
        found: set[int] = set()
        left = [0, *state.states]
        while left:
            at = left.pop()
            if at in found:
                continue
            found.add(at)
            one = self._states[at]
            if one.test < 0 and (one.place is None or self._is_at(one.place, state.before, kind)):
                left += one.ways
        self._spend(len(found))
        return found

    def _is_at(self, place: str, before: int, kind: int) -> bool:
        if place == "start of line":
            return before == _START or (self._is_multiline and before in (_NEWLINE, _LAST_NEWLINE))
        if place == "end of line":
            return kind in (_END, _LAST_NEWLINE) or (self._is_multiline and kind == _NEWLINE)
        if place in ("start", "end"):
            return before == _START if place == "start" else kind == _END
        return ((before == _LETTER) is not (kind == _LETTER)) is (place == "edge")

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > WORK_MAX:
            raise Invalid(
                "the pattern takes too long on these texts",
                hint="use a shorter pattern with fewer counted repeats, or narrow the query by other conditions",
            )


class _Letters(dict[int, str]):
    """The symbol of each character, by its number, for `str.translate`; computed when the character first occurs."""

    def __init__(self, find: Callable[[str], str]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, code: int) -> str:
        if len(self) >= _CHARACTERS_KEPT_MAX:
            self.clear()
        self[code] = self._find(chr(code))
        return self[code]


def _single(text: str, flags: re.RegexFlag) -> Test:
    """A test of one character."""
    try:
        return re.compile(text, flags).fullmatch
    except re.error as error:
        raise Invalid(f"{show(text)} in the pattern is not valid: {error.msg}") from error


def check_options(options: Iterable[str]) -> str:
    """The options without duplicates; `Invalid` for an unknown one."""
    unknown = [option for option in options if option not in OPTIONS]
    if unknown:
        hint = "use i (ignore case), m (^ and $ match at every line), s (a dot also matches a newline)"
        raise Invalid(f"unknown option {show(unknown[0])}", hint=hint)
    return "".join(sorted(set(options)))
