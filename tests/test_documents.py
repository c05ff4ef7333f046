from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from pytest_kopt.campaign import notes
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.documents import MAX_BYTES, dump_yaml, load_yaml, parse_yaml, validate
from pytest_kopt.errors import BadInput
from tests.builders import few_examples

BILLION_LAUGHS = "a0: &a0 [ha]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn")) | st.sampled_from("\n\t"), max_size=30
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def refusal_of(text: str) -> str:
    with pytest.raises(BadInput) as refusal:
        parse_yaml(text, "mine.yaml")
    assert str(refusal.value).startswith("mine.yaml: ")
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BILLION_LAUGHS, "line 2): aliases are not allowed"),
        ("a: &x [*x]\n", "aliases are not allowed"),
        ("a: !!python/object/apply:os.system [id]\n", "python/object/apply:os.system"),
        ("a: !!python/name:os.system\n", "python/name:os.system"),
        ("a: !mine {b: 1}\n", "!mine"),
        ("a: 1\nb: 2\na: 3\n", "key 'a' is given twice"),
        ("a: {b: 1, b: 2}\n", "key 'b' is given twice"),
        ("1: a\n", "key 1 is no text"),
        ("on: a\n", "key True is no text"),
        ("null: a\n", "key None is no text"),
        ("2026-11-20: a\n1.5: b\n", "key 1.5 is no text"),
        ("? [a, b]\n: c\n", "is no text"),
        ("? {a: b}\n: c\n", "is no text"),
        ("a: {1: b}\n", "key 1 is no text"),
        ("<<: {a: 1}\n", "line 1"),
        ("- a\n- b\n", "contains list"),
        ("just words\n", "contains str"),
        ("42\n", "contains int"),
        ("", "contains NoneType"),
        ("# nothing\n", "contains NoneType"),
        ("a: b: c\n", "line 1"),
        ("a: 1\n  b: 2\n", "line 2"),
        ("a: [1, 2\n", "line 2"),
        ("a: 'open\n", "line 2"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: \x07\n", "special characters are not allowed"),
        ("a:\n\tb: c\n", "line 2"),
        (f"a: {'9' * 5000}\n", "is no usable YAML"),
        ("[" * 3_000, "is no usable YAML"),
        ("{a: " * 3_000, "is no usable YAML"),
    ],
)
def test_what_is_no_plain_mapping_is_refused_with_its_fault(text: str, complaint: str) -> None:
    assert complaint in refusal_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!timestamp soon\n",
        "a: !!bool maybe\n",
        'a: !!int ""\n',
        "a: !!int '-'\n",
        'a: !!float ""\n',
        "a: !!set [b]\n",
        "a: !!binary é\n",
        "a: !!omap b\n",
    ],
)
def test_an_explicit_tag_on_something_else_is_refused(text: str) -> None:
    assert "is no usable YAML" in refusal_of(text)


def test_text_that_no_file_can_hold_is_refused() -> None:
    refusal_of('a: "\\ud800"\n')


def test_a_timestamp_stays_the_text_it_is() -> None:
    assert parse_yaml("created: 2026-11-20 10:15\n", "here") == {"created": "2026-11-20 10:15"}
    assert parse_yaml("day: 2026-11-20\n", "here") == {"day": "2026-11-20"}


def test_plain_values_keep_their_types() -> None:
    text = "a: 1\nb: 1.5\nc: true\nd: null\ne: text\nf: [1, x]\ng: {h: i}\n"
    expected = {"a": 1, "b": 1.5, "c": True, "d": None, "e": "text", "f": [1, "x"], "g": {"h": "i"}}
    assert parse_yaml(text, "here") == expected


def test_an_anchor_without_an_alias_does_no_harm() -> None:
    assert parse_yaml("a: &name 1\n", "here") == {"a": 1}


@given(st.dictionaries(TEXT, VALUES, max_size=5))
@few_examples
def test_what_is_dumped_loads_as_the_same_mapping(document: dict[str, object]) -> None:
    assert parse_yaml(dump_yaml(document), "here") == document


def test_keys_are_dumped_in_their_order() -> None:
    assert dump_yaml({"z": 1, "a": "ü"}) == "z: 1\na: ü\n"


def test_the_work_of_reading_a_mapping_grows_with_its_size_and_no_faster() -> None:
    """Counted in calls, which are the same on any machine."""

    def calls(keys: int) -> int:
        text = "".join(f"key{i}: 1\n" for i in range(keys))
        profiler = cProfile.Profile()
        profiler.runcall(parse_yaml, text, "here")
        return int(pstats.Stats(profiler).total_calls)  # type: ignore[attr-defined]

    assert calls(400) < calls(800) < 2.1 * calls(400)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file"),
        (b"a: \xff\xfe\n", "is not UTF-8 (byte 3)"),
        (b"a: " + b"x" * MAX_BYTES, "is too large"),
        (b"a\x00b: c\n", "is no usable YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as refusal:
        load_yaml(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert complaint in str(refusal.value)


def test_a_directory_is_no_document(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Is a directory"):
        load_yaml(tmp_path)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    assert load_yaml(path) == {"a": 1, "b": 2}


def test_every_offending_key_is_named_at_once() -> None:
    with pytest.raises(BadInput) as refusal:
        validate(Notes, {"bucket": "K9", "step_ms": 0, "sumary": "x"}, "notes.yaml")
    text = str(refusal.value)
    assert "key 'bucket' is 'K9'" in text and "'K1'" in text
    assert "key 'step_ms' is 0" in text
    assert "key 'sumary' is unknown" in text and "summary" in text


class Sample(BaseModel):
    """A document with a key of every kind that ours have."""

    model_config = ConfigDict(extra="forbid")

    word: Annotated[str, Field(min_length=2, max_length=3, pattern="^a")] = "aa"
    whole: Annotated[int, Field(ge=1, le=119, strict=True)] = 1
    share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.5
    yes: bool = True
    one: Literal["a", "b"] = "a"
    some: Literal["all"] | list[str] = "all"
    few: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    table: dict[str, float] = {}
    inner: Notes | None = None


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("word", 7, "key 'word' is 7 (allowed: text)"),
        ("word", "a", "(allowed: text, at least 2 character(s))"),
        ("word", "aaaa", "(allowed: text, at most 3 characters)"),
        ("word", "bb", "(allowed: text that matches ^a)"),
        ("whole", "1", "(allowed: a whole number)"),
        ("whole", 1.5, "(allowed: a whole number)"),
        ("whole", 0, "(allowed: at least 1)"),
        ("whole", 120, "(allowed: at most 119)"),
        ("share", "much", "(allowed: a number)"),
        ("share", 0, "(allowed: a number above 0)"),
        ("share", 1, "(allowed: a number below 1)"),
        ("share", float("inf"), "(allowed: a finite number)"),
        ("yes", "perhaps", "(allowed: true or false)"),
        ("one", "c", "(allowed: 'a' or 'b')"),
        ("some", 5, "key 'some' is 5 (allowed: 'all' or a list)"),
        ("some", ["a", 1], "key 'some.1' is 1 (allowed: text)"),
        ("few", "1", "(allowed: a list)"),
        ("few", [], "(allowed: at least 1 item(s))"),
        ("few", [1, 2, 3], "(allowed: at most 2 items)"),
        ("table", "a", "(allowed: a mapping)"),
        ("table", {"a": "b"}, "key 'table.a' is 'b' (allowed: a number)"),
        ("inner", "text", "key 'inner' is 'text' (allowed: a mapping)"),
    ],
)
def test_what_would_be_legal_is_said_in_our_words(key: str, value: object, says: str) -> None:
    with pytest.raises(BadInput) as refusal:
        validate(Sample, {key: value}, "mine.yaml")
    text = str(refusal.value)
    assert says in text and text.count("(allowed:") == 1
    assert "should" not in text and "constrained" not in text and "validation" not in text


def test_notes_are_read_from_a_file_with_every_key_optional(tmp_path: Path) -> None:
    path = tmp_path / "notes.yaml"
    path.write_text("hypothesis: fewer loads\nbucket: W1\nw1_quant_ms: 0.5\nstep_ms: 20\n")
    found = notes.load(path)
    assert found.given() == {
        "hypothesis": "fewer loads",
        "bucket": "W1",
        "w1_quant_ms": 0.5,
        "step_ms": 20.0,
    }


@pytest.mark.parametrize(
    "text", ["bucket: K5", "w1_quant_ms: -1", "step_ms: fast", "summary: [a]", "surprise: x"]
)
def test_notes_that_cannot_be_used_are_named_with_their_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.yaml"
    path.write_text(text + "\n")
    with pytest.raises(BadInput) as refusal:
        notes.load(path)
    assert str(path) in str(refusal.value) and text.partition(":")[0] in str(refusal.value)


def test_later_notes_add_to_earlier_ones_and_take_nothing_away() -> None:
    earlier = Notes(summary="one", hypothesis="because")
    later = Notes(summary="two", lesson="none")
    assert earlier.plus(later).given() == {
        "summary": "two",
        "hypothesis": "because",
        "lesson": "none",
    }
