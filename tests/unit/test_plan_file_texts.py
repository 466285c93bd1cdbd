"""Plan files as text: YAML and JSON with places, nothing guessed, nothing executed."""

from __future__ import annotations

import pytest
from localllm.errors import BadInput, NotFound, PayloadTooLarge
from localllm.planner.files import texts
from localllm.planner.files.nodes import json_path, path_of, plain
from localllm.planner.files.rewrite import dump_yaml, rewrite
from localllm.planner.files.texts import TextFault, compose, looks_like_json, read_text


def yaml(text):
    return plain(compose(text, is_json=False))


def test_yaml_follows_the_core_schema_and_guesses_nothing():
    text = "a: no\nb: 12:30\nc: 0o17\nd: 1e3\ne: '5'\nf: ~\ng: 0x1F\nh: 010\ni: 2001-01-01\nj: true\nk: !!str 5\n"

    assert yaml(text) == {
        "a": "no",
        "b": "12:30",
        "c": 15,
        "d": 1000.0,
        "e": "5",
        "f": None,
        "g": 31,
        "h": 10,
        "i": "2001-01-01",
        "j": True,
        "k": "5",
    }


def test_numbers_beyond_what_json_carries_stay_texts():
    assert yaml("a: .inf\nb: 1e999\nc: .nan") == {"a": ".inf", "b": "1e999", "c": ".nan"}


@pytest.mark.parametrize(
    "text, is_json, message, line, column",
    [
        ("a: 1\nb: 2\na: 3\n", False, "the key `a` is given twice", 3, 1),
        ('{"a": 1,\n "a": 2}', True, "the key `a` is given twice", 2, 2),
        ("a: !!python/object/apply:os.system [x]", False, "is not known here", 1, 4),
        ("a: &x [*x]", False, "an alias names what holds it", 1, 4),
        ("<<: {a: 1}", False, "merge keys", 1, 1),
        ("? [a]\n: b", False, "a key is a text", 1, 3),
        ("a: [1,", False, "is not YAML", 2, 1),
        ("a: 1\n---\nb: 2", False, "is not YAML", 2, 1),
        ("", False, "is empty", 1, 1),
        ("\t- a", False, "is not YAML", 1, 1),
        ('{"a": nope}', True, "unexpected `nope`", 1, 7),
        ('{"a": NaN}', True, "unexpected `NaN`", 1, 7),
        ('{"a": 1', True, "expected `,` or `}`", 1, 8),
        ('{"a": "x\n"}', True, "invalid control character", 1, 9),
        ("{} x", True, "more follows", 1, 4),
        ("", True, "ends too early", 1, 1),
        ("[" * 100_000, True, "nested too deeply", 1, 1),
        ("[" * 100_000, False, "is not YAML", 1, 1001),
    ],
)
def test_a_fault_is_told_with_its_place(text, is_json, message, line, column):
    with pytest.raises(TextFault, match=message) as fault:
        compose(text, is_json=is_json)

    assert (fault.value.line, fault.value.column) == (line, column)


def test_aliases_that_multiply_are_refused(monkeypatch):
    monkeypatch.setattr(texts, "LARGEST_DOCUMENT_NODES", 1000)
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    with pytest.raises(TextFault, match="aliases"):
        compose("\n".join(lines), is_json=False)


def test_a_text_without_libyaml_reads_the_same(monkeypatch):
    import sys

    text = "a: &x [1, 'é', {b: no}]\nc: *x\n"
    expected = yaml(text)
    texts.loader.cache_clear()
    monkeypatch.setitem(sys.modules, "yaml.cyaml", None)
    try:
        assert yaml(text) == expected
    finally:
        texts.loader.cache_clear()


def test_every_value_knows_its_place():
    root = compose("steps:\n  - plan: {command: status}\n    tags: [é, b]\n", is_json=False)

    assert (root.at(("steps", 0, "tags", 1)).line, root.at(("steps", 0, "tags", 1)).column) == (3, 15)
    assert root.at(("steps", 0, "gone", "deeper")).line == 2
    assert root.key_at(("steps", 0, "tags")).column == 5


def test_json_keeps_surrogate_pairs_and_places():
    root = compose('{\n "a": ["\\ud83d\\ude00", 1.5, null]}', is_json=True)

    assert plain(root) == {"a": ["😀", 1.5, None]}
    assert (root.at(("a", 1)).line, root.at(("a", 1)).column) == (2, 24)


@pytest.mark.parametrize("path", [("steps", 0, "plan"), ("a b", 3, "it's"), ("$.x['q']",), ()])
def test_a_json_path_names_the_steps_it_was_made_of(path):
    assert path_of(json_path(path)) == path


def test_a_file_is_json_by_its_name_or_its_first_character():
    assert looks_like_json("x.plan.json", "")
    assert not looks_like_json("x.plan.yaml", "{}")
    assert looks_like_json("-", ' {"a": 1}')
    assert not looks_like_json("-", "a: 1")


def test_a_file_over_16_mb_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "big.plan.yaml"
    with path.open("wb") as file:
        file.truncate(texts.LARGEST_FILE_BYTES + 1)

    with pytest.raises(PayloadTooLarge) as refused:
        read_text(str(path))
    assert refused.value.exit_code == 2


def test_a_file_that_cannot_be_read_is_told_apart(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")

    with pytest.raises(NotFound):
        read_text(str(tmp_path / "gone.yaml"))
    with pytest.raises(BadInput, match="cannot be read"):
        read_text(str(tmp_path))
    with pytest.raises(BadInput, match=r"latin.yaml:2: is not UTF-8"):
        read_text(str(tmp_path / "latin.yaml"))


BEFORE = """\
# head
steps:
  - plan: {command: status}   # c1
    expect:
      exit_code: 0     # keep me
      # also me
      "$.result.a": {"<=": 3}  # and me
    # trailing

  - plan:
      command: status
    # end of step
  - {plan: {command: status}}
# eof
"""

AFTER = """\
# head
steps:
  - plan: {command: status}   # c1
    expect:
      exit_code: 1     # keep me
      # also me
      "$.result.a": {"<=": 3}  # and me
      $.new: 'no'
    # trailing

  - plan:
      command: status
    expect:
      a:
        - 1
        - b: "1e3"
    # end of step
  - {plan: {command: status}, "expect": {"x": 1}}
# eof
"""


def test_new_values_leave_comments_and_layout_as_they_are():
    edits = {
        ("steps", 0, "expect"): {"exit_code": 1, "$.result.a": {"<=": 3}, "$.new": "no"},
        ("steps", 1, "expect"): {"a": [1, {"b": "1e3"}]},
        ("steps", 2, "expect"): {"x": 1},
    }

    assert rewrite(BEFORE, edits, is_json=False) == AFTER


@pytest.mark.parametrize("old", ["{a: 1}   # kept", "  # kept\n      a: 1\n      b: 2", "\n    - a\n    - b   # kept"])
def test_a_block_takes_the_place_of_any_value_without_blank_ends_of_lines(old):
    text = f"steps:\n  - x: {old}\n    y: 1\n".replace(": \n", ":\n").replace(":  ", ":")
    content = rewrite(text, {("steps", 0, "x"): {"c": 1, "d": {"e": [2]}}}, is_json=False)

    assert yaml(content) == {"steps": [{"x": {"c": 1, "d": {"e": [2]}}, "y": 1}]}
    assert "# kept" in content
    assert [line for line in content.splitlines() if line != line.rstrip() or not line] == []


def test_json_is_rewritten_in_place_too():
    text = '{"steps": [\n  {"plan": {"command": "x"},\n   "expect": {"a": 1}}]}'
    edits = {("steps", 0, "expect"): {"a": 2, "b": [True]}, ("steps", 0, "name"): "q"}

    assert rewrite(text, edits, is_json=True) == (
        '{"steps": [\n  {"plan": {"command": "x"},\n   "expect": {"a": 2, "b": [true]},\n   "name": "q"}]}'
    )


def test_a_path_without_a_parent_is_no_place_to_write_to():
    with pytest.raises(KeyError):
        rewrite("steps: []", {("steps", 3, "expect"): 1}, is_json=False)


def test_what_is_dumped_as_yaml_reads_back():
    value = {"a": ["no", "1e3", "12:30", 1.5, None, True, "two\nlines\n", "<<", "é", "", {"x": {}}, [], "- a", "#"]}

    assert yaml(dump_yaml(value)) == value
