"""Conversion: nothing is lost on the way, and nothing half is left when it fails."""

import json

import pytest
import tools.convert as conversion
from tools.convert import convert_data

from covalt_toolset import invoke


def convert(path, output, **arguments):
    return invoke(convert_data, {"path": path, "output": output, **arguments})


def test_a_whole_column_of_numbers_becomes_numbers_and_no_other_does(write, workspace):
    write("a.csv", "n,f,t,code,mixed,text\n1,1.50,true,01,1,a\n,2,FALSE,2,x,\n")
    assert convert("a.csv", "out/a.json") == {
        "output": "out/a.json",
        "format": "json",
        "rows": 2,
        "columns": ["n", "f", "t", "code", "mixed", "text"],
        "size": (workspace / "out/a.json").stat().st_size,
    }
    assert json.loads((workspace / "out/a.json").read_text()) == [
        {"n": 1, "f": 1.5, "t": True, "code": "01", "mixed": "1", "text": "a"},
        {"n": None, "f": 2, "t": False, "code": "2", "mixed": "x", "text": None},
    ]


def test_json_stays_as_it_was_on_its_way_to_json(write, workspace):
    rows = [{"a": "12", "b": [1, {"c": None}]}, {"b": None, "d": "ü"}]
    write("a.json", json.dumps(rows))
    convert("a.json", "a.jsonl")
    assert [json.loads(line) for line in (workspace / "a.jsonl").read_text().splitlines()] == rows
    convert("a.jsonl", "b.json", columns=["d", "a"])
    assert json.loads((workspace / "b.json").read_text()) == [{"a": "12"}, {"d": "ü"}]


def test_awkward_cells_survive_csv(write, workspace):
    rows = [{"a": 'quote " and, comma', "b": "line\nbreak"}, {"a": "tab\there", "b": "ü;|"}]
    write("a.json", json.dumps(rows))
    for name in ("a.csv", "a.tsv"):
        convert("a.json", name)
        convert(name, "back.json")
        assert json.loads((workspace / "back.json").read_text()) == rows


def test_columns_and_conditions_choose(write, workspace):
    write("a.csv", "a,b\n1,x\n2,y\n3,z\n")
    found = convert("a.csv", "b.csv", columns=["b"], where=[{"column": "a", "is": ">", "value": 1}])
    assert (found["rows"], (workspace / "b.csv").read_text()) == (2, "b\ny\nz\n")
    assert convert("a.csv", "none.json", where=[{"column": "a", "value": 9}])["rows"] == 0
    assert (workspace / "none.json").read_text() == "[]\n"


def test_an_encoding_becomes_utf_8(write, workspace):
    write("a.csv", "w\nGröße\n", "utf-16")
    convert("a.csv", "b.csv")
    assert (workspace / "b.csv").read_bytes() == "w\nGröße\n".encode()


def test_a_failure_leaves_what_was_there(write, workspace):
    write("a.jsonl", '{"a": 1}\n' * 5 + "nope\n")
    write("b.csv", "as it was")
    with pytest.raises(ValueError, match=r"'a\.jsonl' line 6"):
        convert("a.jsonl", "b.csv")
    assert sorted(path.name for path in workspace.iterdir()) == ["a.jsonl", "b.csv"]
    assert (workspace / "b.csv").read_text() == "as it was"


def test_a_failure_while_writing_leaves_nothing_half(write, workspace, monkeypatch):
    def rows(*_):
        yield ["1"]
        raise OSError("no space left")

    monkeypatch.setattr(conversion, "_texts", rows)
    write("a.csv", "a\n1\n2\n")
    with pytest.raises(OSError, match="no space left"):
        convert("a.csv", "b.csv")
    assert [path.name for path in workspace.iterdir()] == ["a.csv"]


def test_half_a_character_does_no_harm(write, workspace):
    write("a.jsonl", '{"a": "x\\ud800"}\n')
    convert("a.jsonl", "b.json")
    convert("a.jsonl", "b.csv")
    assert json.loads((workspace / "b.json").read_text()) == [{"a": "x?"}]
    assert (workspace / "b.csv").read_text() == "a\nx?\n"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("b.xlsx", "'output' 'b.xlsx' must end in one of .csv, "),
        ("a.csv", "'output' is the file that is read; give it another name"),
        ("../b.csv", "'../b.csv' leads out of the workspace"),
    ],
)
def test_an_output_that_cannot_be_is_refused(output, message, write):
    write("a.csv", "a\n1\n")
    with pytest.raises(ValueError) as refused:
        convert("a.csv", output)
    assert str(refused.value).startswith(message)
