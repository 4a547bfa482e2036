"""LEAF's rules for speaking roles, each on a page made by hand."""

import pytest

from spcacw_flwr.partitions import plays
from spcacw_flwr.partitions.plays import VOCABULARY, parse_roles

BY = "by William Shakespeare"
SPEECH = ["  Ann. a line", *["    a line"] * 2, "  Bob. b line", *["    b line"] * 2]


def page(*lines):
    """A file: its first line, a first work that does not count, then the given lines."""
    return "\n".join(["dropped", "THE SONNETS", "", BY, "  Nobody. In no play.", *lines])


def play(title, *lines):
    return [title, "", BY, *lines]


def texts(*lines):
    return {f"{role.play}: {role.character}": role.text for role in parse_roles(page(*lines))}


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch):
    """Roles of a few words count as long enough for a sample."""
    monkeypatch.setattr(plays, "WINDOW", 5)


def test_vocabulary_is_leafs_80_symbols():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert VOCABULARY[:3] == "\n !"
    assert VOCABULARY[-2:] == "z}"


def test_a_play_with_indents():
    got = texts(
        *play(
            "KING JOHN",
            "  Nobody here yet",
            "    nor here.",  # no current speaker: ignored
            "  Ann. One line,",
            "    a second,",
            "      deeper  still.",  # four spaces go, the other two become one
            "Flush text is ignored, and the speaker stays.",
            "  Two spaces are no speech.",
            "   Three. Are neither.",
            "",
            "    a last one.",
            "  BOB. First.",
            "  Ann. Again.",
            "    Four. Is a line of Ann's.",
            "  Bob. Second.",  # the same as BOB: upper case
            "    Third.",
            "  N4me. Is no name, so nobody speaks it.",
            "  Bob.No space, so it is no speech.",
            "  Sir Bob. One.",
            "    Two.",
            "    Three.",
        )
    )
    assert got == {
        "KING JOHN: ANN": "One line, a second, deeper still. a last one. Again. Four. Is a line of "
        "Ann's. ",
        "KING JOHN: BOB": "First. Second. Third. ",
        "KING JOHN: SIR BOB": "One. Two. Three. ",
    }


def test_roles_of_two_bites_and_plays_of_one_character_are_dropped():
    long = ["    one more line", "    one more line"]
    got = texts(
        *play("ALONE", "  Hermit. A line.", *long),
        *play("TWO", "  Ann. A line.", *long, "  Bob. Only two bites,", "    which is too few."),
    )
    # Bob, though dropped, still makes TWO a play of two characters.
    assert list(got) == ["TWO: ANN"]


def test_a_role_needs_one_sample(monkeypatch):
    monkeypatch.setattr(plays, "WINDOW", 80)
    bites = ["  A. " + 38 * "x", "    " + 38 * "y", "    z"]  # 39 + 39 + 2 = 80 characters
    other = ["  B. " + 38 * "x", "    " + 38 * "y", "    zz"]  # 81: a window and its next character
    roles = parse_roles(page(*play("P", *bites, *other)))
    assert [(role.character, len(role.text)) for role in roles] == [("B", 81)]


def test_the_comedy_of_errors_is_set_flush():
    got = texts(
        *play(
            "THE COMEDY OF ERRORS",
            "ignored before anyone speaks",
            "Ann. One,",
            "two,",
            "   three.",
            "",
            "ACT II. SCENE 1. is no speaker,",
            "and clears the one who spoke,",
            "for as many lines as a role needs.",
            "Bob. First",
            "second",
            "<<THIS ELECTRONIC VERSION clears the speaker, too",
            "so that this is nobody's.",
            "Bob. third",
            "  Indented. Is a line of Bob's.",
        )
    )
    assert got == {
        "THE COMEDY OF ERRORS: ANN": "One, two, three. ",  # the empty line is a bite, too
        "THE COMEDY OF ERRORS: BOB": "First second third Indented. Is a line of Bob's. ",
    }


def test_a_byline_starts_a_play_without_a_speaker():
    got = texts(*play("ONE", *SPEECH, "TWO", "", BY, "    nobody's line", *SPEECH))
    assert list(got) == ["ONE: ANN", "ONE: BOB", "TWO: ANN", "TWO: BOB"]
    assert got["ONE: BOB"] == "b line b line b line "
    assert got["TWO: ANN"] == "a line a line a line "


@pytest.mark.parametrize("gap", range(1, 9))
def test_the_title_is_the_nearest_line_with_text_two_to_seven_above(gap):
    """One line above is never the title; nor is the eighth."""
    lines = ["", "", "  FARTHER  ", *[""] * 7, "  TITLE  ", *[""] * (gap - 1), BY, *SPEECH]
    first = play("FIRST", "  Solo. No play, for want of a second character.")
    (title,) = {role.play for role in parse_roles(page(*first, *lines))}
    assert title == ("TITLE" if 2 <= gap <= 7 else "")


def test_text_before_the_second_byline_is_dropped_but_for_five_lines():
    # Six lines above the byline: the file was cut in between.
    (title,) = {role.play for role in parse_roles(page("CUT OFF", *[""] * 5, BY, *SPEECH))}
    assert title == ""
    assert not parse_roles("first\n" + BY + "\n" + "\n".join(SPEECH)), "there is no second byline"


def test_what_follows_the_last_line_is_no_play(monkeypatch):
    text = page(*play("ONE", *SPEECH))
    lines = text.split("\n")
    monkeypatch.setattr(plays, "_LAST_LINE", len(lines) - 2)  # counted after the first line's drop
    assert [role.character for role in parse_roles(text)] == ["ANN", "BOB"]
    monkeypatch.setattr(plays, "_LAST_LINE", len(lines) - 3)
    assert [role.character for role in parse_roles(text)] == ["ANN"]
