"""profiles/io/reader.py: every way in which a file can be broken, and the lines of every field."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from meshwright.profiles.io.document import FieldPath, check_keys, dotted
from meshwright.profiles.io.reader import read_document

from meshwright.errors import InputError

YAML_TEXT = """\
# a comment
name: x
groups:
  - node: dgx-h100
    count: 2

  - node: dgx-a100
    count: 4
links: {inter: {bandwidth: 400 Gb/s}}
"""
LINES = [
    (("name",), 2),
    (("groups",), 3),
    (("groups", 0), 4),
    (("groups", 0, "count"), 5),
    (("groups", 1, "count"), 8),
    (("links", "inter", "bandwidth"), 9),
    (("groups", 1, "nics"), 7),  # not there: the line of what holds it
    (("nothing",), 2),
]


@pytest.mark.parametrize(("path", "line"), LINES)
def test_lines_of_yaml(path: FieldPath, line: int) -> None:
    assert read_document("a.yaml", YAML_TEXT).line(path) == line


def test_lines_of_json_and_toml() -> None:
    text = '{\n\t"groups": [\n\t\t{"node": "a"},\n\t\t{"node": "b",\n\t\t "count": 1e2}\n\t]\n}'
    as_json = read_document("a.json", text)
    assert as_json.data == {"groups": [{"node": "a"}, {"node": "b", "count": 100.0}]}
    assert as_json.line(("groups", 1, "count")) == 5
    text = 'name = "x"\n[links.inter]\nbandwidth = "1 GB/s"\n[[groups]]\nn=1\n[[groups]]\nn=2\n'
    as_toml = read_document("a.toml", text)
    assert as_toml.line(("links", "inter", "bandwidth")) == 3
    assert [as_toml.line(("groups", n, "n")) for n in (0, 1)] == [5, 7]


def test_numbers_and_dates_mean_what_they_say() -> None:
    text = "a: 1e9\nb: 1:30\nc: 2025-01-01\nd: 0x10\ne: 1_000\nf: .5\ng: 12\nh: -3\ni: true\nj: 1.\nk: 1.2e+3\nl: .inf"
    data = read_document("a.yaml", text).data
    assert data == {"a": 1e9, "b": "1:30", "c": "2025-01-01", "d": 16, "e": 1000, "f": 0.5, "g": 12, "h": -3,
                    "i": True, "j": 1.0, "k": 1200.0, "l": float("inf")}  # fmt: skip


BROKEN = [
    ("a.yaml", "", "a.yaml: the file is empty"),
    ("a.yaml", "# only a comment\n", "a.yaml: the file is empty"),
    ("a.json", " \n", "a.json: the file is empty"),
    ("a.yaml", "a: 1\nb: 2\na: 3", "a.yaml, line 3, a: key `a` is given twice, first in line 1"),
    ("a.yaml", "x:\n  a: 1\n  a: 3", "a.yaml, line 3, x.a: key `a` is given twice, first in line 2"),
    ("a.json", '{"a": 1,\n"a": 2}', "a.json, line 2, a: key `a` is given twice, first in line 1"),
    ("a.toml", "a = 1\na = 2", "a.toml, line 2: not valid TOML: cannot overwrite a value"),
    ("a.yaml", "a:\n\tb: 1", "a.yaml, line 2: not valid YAML: a tab in the indentation"),
    ("a.yaml", "a: b: c", "a.yaml, line 1: not valid YAML: mapping values are not allowed in this context"),
    ("a.yaml", "a: 1\n---\nb: 1", "a.yaml, line 2: holds more than one YAML document"),
    ("a.yaml", "a: &x [*x]", "a.yaml, line 1, a[0]: contains itself through an alias"),
    ("a.yaml", "a\x00: 1", "a.yaml, line 1: not valid YAML: control character 0x00"),
    ("a.json", '{"a": 1,\n}', "a.json, line 2: not valid JSON: expecting property name enclosed in double quotes"),
    ("a.toml", "a = \n", "a.toml, line 1: not valid TOML: invalid value"),
    ("a.yaml", "[" * 900 + "]" * 900, "a.yaml, line 1: nested too deeply to be read"),
    ("a.yaml", "- " * 100_000, "a.yaml, line 1: nested too deeply to be read"),
    ("a.json", "[" * 100_000 + "]" * 100_000, "a.json: nested too deeply to be read"),
    ("a.toml", "a = " + "[" * 3000 + "]" * 3000, "a.toml: nested too deeply to be read"),
    ("a.json", '{"a": ' + "1" * 5000 + "}", "a.json: not valid JSON: holds a whole number of more than 4,300 digits"),
    ("a.toml", "a = " + "1" * 5000, "a.toml: not valid TOML: holds a whole number of more than 4,300 digits"),
    ("a.yaml", "a: " + "1" * 5000, "a.yaml: not valid YAML: holds a whole number of more than 4,300 digits"),
    ("a.yaml", "a: !!python/object:os.system x", "a.yaml, line 1: not valid YAML: could not determine a constructor"),
]


def test_the_last_of_equal_keys_counts_where_it_does_for_the_loader_of_a_framework() -> None:
    text = "a: 1\nb: {c: 1, d: 2}\na: 3\nb:\n  c: 5\n  c: 6\n"
    document = read_document("a.yaml", text, last_counts=True)
    assert document.data == yaml.safe_load(text) == {"a": 3, "b": {"c": 6}}
    assert (document.line(("a",)), document.line(("b", "c"))) == (3, 6)
    assert document.repeated == "a.yaml has `a` in lines 1 and 3, and 2 more keys twice: the last counts, as for PyYAML"
    assert read_document("a.yaml", "a: 1\nb: 2\n", last_counts=True).repeated == ""
    with pytest.raises(InputError, match="given twice"):
        read_document("a.json", '{"a": 1, "a": 2}', last_counts=True)


@pytest.mark.parametrize(("name", "text", "message"), BROKEN)
def test_broken_text(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_document(name, text)
    assert caught.value.message.startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(InputError, match="no such file") as caught:
        read_document(missing)
    assert str(missing) in caught.value.message
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_document(tmp_path)
    with pytest.raises(InputError, match=r"a\\0b.yaml: no file can have this name"):
        read_document("a\0b.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(InputError, match=r"line 2: not UTF-8 text \(byte 0xe9\)"):
        read_document(latin)
    marked = tmp_path / "marked.yaml"
    marked.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(marked).data == {"a": 1}


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a":\n 1}')))
    document = read_document("-")
    assert (document.name, document.data, document.line(("a",))) == ("stdin", {"a": 1}, 1)


def test_problem_names_file_line_and_field() -> None:
    document = read_document("a.yaml", YAML_TEXT)
    assert str(document.problem(("groups", 1, "count"), "is wrong")) == "a.yaml, line 8, groups[1].count: is wrong"
    part = document.part(("groups", 1))
    assert part.at(("node",)) == "dgx-a100"
    assert str(part.problem(("count",), "is wrong")) == "a.yaml, line 8, groups[1].count: is wrong"
    assert document.at(("groups", 7, "x"), "absent") == "absent"


def test_unknown_keys() -> None:
    document = read_document("a.yaml", "nod: 1\ncount: 2\nzzz: 3\n")
    problems = check_keys(document, (), ("node", "count"))
    assert [(p.message, p.line, p.hint) for p in problems] == [
        ("unknown key `nod`", 1, "did you mean `node`?"),
        ("unknown key `zzz`", 3, "known here: count, node"),
    ]
    (problem,) = check_keys(document, ("count",), ("x",))
    assert str(problem) == "a.yaml, line 2, count: must be a mapping with the keys x"


def test_merge_keys_and_aliases_are_no_duplicates() -> None:
    text = "base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  x: 3\n"
    document = read_document("a.yaml", text)
    assert document.data["more"] == {"x": 3, "y": 2}
    assert document.line(("more", "x")) == 4
    assert document.line(("more", "y")) == 1  # where the alias points to: there the value must be changed


def test_surrogate_pairs_in_json() -> None:
    assert read_document("a.json", '{"a": "\\ud83d\\ude00"}').data == {"a": "\N{GRINNING FACE}"}


def test_dotted() -> None:
    assert dotted(("groups", 0, "node")) == "groups[0].node"


def test_a_large_file_reads(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("".join(f"- {{id: {n}, name: row-{n}}}\n" for n in range(20_000)))
    document = read_document(path)
    assert len(document.data) == 20_000
    assert document.line((19_999, "name")) == 20_000


# PyYAML writes the text 1E5 without quotes, which YAML 1.2 (and our reader) takes for a number.
number = re.compile(r"[-+]?[0-9.]+[eE]")
words = st.text(st.characters(codec="ascii", min_codepoint=32)).filter(lambda text: not number.match(text))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abcdef", min_size=1, max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), plain, min_size=1))
def test_json_and_yaml_read_alike(data: dict[str, object]) -> None:
    assert read_document("a.json", json.dumps(data)).data == data
    assert read_document("a.yaml", yaml.safe_dump(data)).data == data
