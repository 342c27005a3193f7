"""Patterns match as Python's `re` does, in a time that is bounded."""

from __future__ import annotations

import re
from random import Random

import pytest

from worm.errors import Invalid
from worm.query.patterns import GROUPS_MAX, OPTIONS, PATTERN_MAX, STATES_MAX, Pattern, check_options


def refusal(text: str) -> str:
    with pytest.raises(Invalid) as caught:
        Pattern(text)
    return str(caught.value)


def is_found(pattern: str, text: str, options: str = "") -> bool:
    """By our engine and by `re`, which must be the same."""
    flags = re.NOFLAG
    for option in options:
        flags |= OPTIONS[option]
    found = Pattern(pattern, options).search(text)
    assert found is (re.search(pattern, text, flags) is not None), (pattern, text, options)
    return found


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", ["", "a"], []),
        ("^Acme", ["Acme", "Acme Corp"], ["acme", "The Acme"]),
        (r"\.com$", ["a.com", "a.com\n"], ["a.com.au", "acom", "a.com\n\n"]),
        (r"\.com\Z", ["a.com"], ["a.com\n"]),
        (r"^\d{3}-\d{4}$", ["555-1234"], ["55-1234", "555-12345"]),
        ("colou?r|gr[ae]y", ["color", "colour", "grey", "gray"], ["colr", "gry"]),
        (r"\bcat\b", ["a cat.", "cat"], ["concat", "cats"]),
        (r"\Bcat", ["concat"], ["a cat"]),
        ("a{2,}b{,2}c", ["aac", "aaabbc"], ["ac", "abbc", "aabbbc"]),
        ("a{2}|[^a-z]", ["aa", "1", "é"], ["ab"]),
        (r"[]\-^x]", ["]", "-", "^", "x"], ["\\", "y"]),
        (r"x{a}|y{", ["x{a}", "y{"], ["xa", "y"]),
        ("(?P<first>a)(?:b)+?c", ["abc", "abbc"], ["ac"]),
        ("a.c", ["abc", "a\u20acc"], ["a\nc", "ac"]),
        (r"\w+@\w+", ["x ä@ö y"], ["@", "a@"]),
        (r"(|a)+b\x41\u00e9", ["bAé", "aabAé"], ["bA"]),
        ("(?:^a|b$)|^$", ["ax", "xb", "", "\n"], ["xa", "bx"]),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [text for text in [*matching, *others] if is_found(pattern, text)] == matching


def test_a_pattern_may_have_as_many_letters_as_it_may_have_characters() -> None:
    assert is_found("a" * (PATTERN_MAX - 1), "a" * PATTERN_MAX)


def test_options_are_either_case_every_line_and_dots_for_newlines() -> None:
    assert is_found("ACME.É", "acme-é", "i")
    assert is_found("[a-c]+$", "xABC", "i")
    assert not is_found("acme", "ACME")
    assert is_found("^b$", "a\nb\nc", "m")
    assert not is_found("^b$", "a\nb\nc")
    assert is_found("^$", "a\n", "m")
    assert is_found("a.b", "a\nb", "s")
    assert check_options("smis") == "ims"
    with pytest.raises(Invalid, match="unknown option 'x'"):
        check_options("ix")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_random_patterns_match_as_in_python(seed: int) -> None:
    dice = Random(seed)
    for _ in range(60):
        pattern, options = _pattern(dice, 3), "".join(dice.sample("ims", dice.randrange(3)))
        for _ in range(6):
            is_found(pattern, "".join(dice.choice("abAB_ \n.é") for _ in range(dice.randrange(1, 9))), options)


def _pattern(dice: Random, depth: int) -> str:
    parts = [_item(dice, depth) for _ in range(dice.randrange(1, 4))]
    text = "".join(parts)
    return f"{text}|{_pattern(dice, depth - 1)}" if depth and dice.random() < 0.3 else text


def _item(dice: Random, depth: int) -> str:
    roll = dice.random()
    if roll < 0.15:
        return dice.choice(["^", "$", r"\b", r"\B", r"\A", r"\Z"])
    if depth and roll < 0.45:
        item = f"{dice.choice(['(', '(?:'])}{_pattern(dice, depth - 1)})"
    else:
        item = dice.choice(["a", "b", "A", ".", r"\.", r"\w", r"\s", r"\D", "[ab]", "[^a]", "[a-b_]", r"[\s\S]", "é"])
    return item + dice.choice(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{,1}", "{1,}?"])


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a*)*b", "(a|aa)+$", "(a|a?)+b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_hangs_a_backtracking_engine_takes_a_moment(pattern: str) -> None:
    """One request with such a filter would otherwise keep a process busy for years."""
    assert not Pattern(pattern).search("a" * 100_000 + "!")


@pytest.mark.slow
def test_a_pattern_with_endless_sets_of_states_is_stopped_and_not_waited_for() -> None:
    pattern, dice = Pattern("(a|b)*a(a|b){150}c"), Random(1)
    text = "".join(dice.choice("ab") for _ in range(200_000))
    with pytest.raises(Invalid, match="takes too long on these texts"):
        pattern.search(text)


def test_a_text_with_every_character_there_is_takes_no_more_than_one_step_each() -> None:
    text = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x11000)]))
    assert not Pattern(r"\w{3}-{2}x").search(text)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"(a)\1", r"\1 is not supported at character 4 of the pattern"),
        ("(?P<x>a)(?P=x)", "this kind of group is not supported at character 9"),
        ("a(?=b)", "this kind of group is not supported at character 2"),
        ("(?<!a)b", "lookaround"),
        ("(?i)a", "flags go into $options"),
        ("(?>a)", "this kind of group"),
        ("a++", "possessive"),
        ("a**", "a repeat of a repeat"),
        ("a{2}{3}", "a repeat of a repeat"),
        ("*a", "nothing to repeat"),
        ("a|+", "nothing to repeat"),
        ("^*", "nothing to repeat"),
        ("(a", "a parenthesis is not closed"),
        ("a)", "unbalanced parenthesis at character 2"),
        ("[a", "a bracket is not closed"),
        ("a\\", "a backslash without anything after it"),
        (r"\q", "bad escape"),
        ("[b-a]", "bad character range"),
        ("[[:alpha:]]", "inside brackets"),
        ("a{3,1}", "{3,1} ends before it starts"),
        ("a{1001}", f"more than {STATES_MAX:,} states"),
        ("((a{100}){100}){100}", f"more than {STATES_MAX:,} states"),
        ("a{99999999999}", "states"),
        ("((((){999}){999}){999}){999}", "states"),
        ("(" * 40 + ")" * 40, f"more than {GROUPS_MAX} nested groups"),
        ("a" * (PATTERN_MAX + 1), "1,001 characters, and the limit is 1,000"),
    ],
)
def test_what_cannot_be_bounded_or_is_no_pattern_is_refused_with_its_place(pattern: str, part: str) -> None:
    assert part in refusal(pattern)
