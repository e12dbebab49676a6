"""Profiles of files: exact where they can be, and fair estimates where not."""

import json
import random
import statistics
import tracemalloc

import pytest
from tools import sketches, tables
from tools.profile import profile_data

from covalt_toolset import invoke


def profile(path, **arguments):
    return invoke(profile_data, {"path": path, **arguments})


def column(found, name):
    return next(each for each in found["columns"] if each["name"] == name)


def test_each_column_is_described(write):
    found = profile(
        write(
            "a.csv",
            "name,born,height,alive,joined\n"
            "Ada,1815,1.65,false,2024-01-31\nAlan,1912,1.78,false,2024-02-01T10:00\nBarbara,,1.6,true,\nBarbara,1939,NA,true,2023-12-24\n",
        )
    )
    assert (found["rows"], found["total_columns"], found["encoding"], found["delimiter"]) == (4, 5, "utf-8", ",")
    assert [each["type"] for each in found["columns"]] == ["text", "integer", "number", "boolean", "datetime"]
    assert column(found, "name")["top"] == [
        {"value": "Barbara", "count": 2},
        {"value": "Ada", "count": 1},
        {"value": "Alan", "count": 1},
    ]
    assert column(found, "name")["lengths"] == [3, 7]
    born = column(found, "born")
    assert (born["missing"], born["distinct"], born["minimum"], born["maximum"]) == (1, 3, 1815, 1939)
    assert born["mean"] == 1888.67
    assert born["deviation"] == pytest.approx(statistics.stdev([1815, 1912, 1939]), rel=1e-5)
    assert sum(born["histogram"]) == 3
    assert column(found, "height")["quantiles"]["median"] == 1.65
    joined = column(found, "joined")
    assert (joined["minimum"], joined["maximum"]) == ("2023-12-24T00:00:00", "2024-02-01T10:00:00")
    assert found["sample"][2] == {"name": "Barbara", "born": "", "height": "1.6", "alive": "true", "joined": ""}


def test_the_same_rows_give_the_same_profile_in_every_format(write):
    rows = [{"a": index, "b": f"x{index % 3}", "c": index / 4} for index in range(50)]
    text = "a,b,c\n" + "".join(f"{row['a']},{row['b']},{row['c']}\n" for row in rows)
    files = [
        write("a.csv", text),
        write("a.tsv", text.replace(",", "\t")),
        write("a.json", json.dumps(rows)),
        write("b.json", json.dumps(rows, indent=3)),
        write("a.jsonl", "".join(json.dumps(row) + "\n\n" for row in rows)),
    ]
    first, *others = [profile(file)["columns"] for file in files]
    assert [other == first for other in others] == [True] * 4


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", "utf-8"), ("utf-8-sig", "utf-8-sig"), ("utf-16", "utf-16"), ("cp1252", None)]
)
def test_the_encoding_is_found(encoding, expected, write):
    words = ["Größe", "Straße", "Käse", "Öl", "Übermut", "schön", "Äpfel", "für", "müde", "weiß"]
    text = "Wort;Zahl\n" + "".join(f"{words[index % 10]} und {words[index // 10]};{index}\n" for index in range(100))
    found = profile(write("a.csv", text, encoding))
    assert expected is None or found["encoding"] == expected
    assert found["sample"][0]["Wort"] == "Größe und Größe"
    assert column(found, "Zahl")["maximum"] == 99


def test_a_decimal_comma_is_taken_where_it_is_no_delimiter(write):
    found = profile(write("a.csv", "preis;n\n3,14;1\n1.234,50;2\n"))
    assert (column(found, "preis")["type"], column(found, "preis")["maximum"]) == ("number", 1234.5)
    assert column(profile(write("b.csv", 'preis,n\n"3,14",1\n"1.234,50",2\n')), "preis")["type"] == "text"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter, write):
    rows = [["a", "b b", "c"], ["1", "x, y; z", "2"], ["3", "| w", "4"]]
    text = "".join(delimiter.join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    found = profile(write("a.csv", text))
    assert (found["delimiter"], [each["name"] for each in found["columns"]]) == (delimiter, ["a", "b b", "c"])


def test_codes_of_digits_are_text(write):
    found = profile(write("a.csv", "postcode,card,zero\n01067,1234567890123456,0\n80331,6543210987654321,-0.5\n"))
    assert [each["type"] for each in found["columns"]] == ["text", "text", "number"]


def test_odd_values_are_remarked_and_counted_nowhere(write):
    text = "n\n" + "".join(f"{index}\n" for index in range(99)) + "n/k\n"
    found = column(profile(write("a.csv", text)), "n")
    assert (found["type"], found["maximum"]) == ("integer", 98)
    assert found["remarks"] == ["1 of 100 values are no integer, such as 'n/k'; numbers leave them out"]


def test_a_column_of_numbers_with_a_few_dates_keeps_its_mean(write):
    text = "n\n" + "1\n3\n" * 50 + "2024-01-01\n"
    assert column(profile(write("a.csv", text)), "n")["mean"] == 2


def test_headers_with_gaps_and_rows_of_odd_lengths(write):
    found = profile(write("a.csv", "a,,a\n1,2,3\n\n4\n5,6,7,8\n"))
    assert [each["name"] for each in found["columns"]] == ["a", "column 2", "a (2)"]
    assert (found["rows"], column(found, "a (2)")["missing"], column(found, "a (2)")["maximum"]) == (3, 1, 7)
    assert profile("a.csv", header=False)["rows"] == 4


def test_objects_with_different_keys(write):
    found = profile(write("a.jsonl", '{"a": 1}\n{"b": {"c": [1]}, "a": null}\n{"b": true}\n'))
    assert [(each["name"], each["type"], each["missing"]) for each in found["columns"]] == [
        ("a", "integer", 2),
        ("b", "text", 1),
    ]
    assert found["sample"][1]["b"] == '{"c": [1]}'


def test_a_column_that_comes_late_misses_the_rows_before(write, monkeypatch):
    monkeypatch.setattr(tables, "BATCH_ROWS", 10)
    rows = [{"a": index} for index in range(25)] + [{"b": 1}]
    found = profile(write("a.json", json.dumps(rows)))
    assert [(each["name"], each["missing"]) for each in found["columns"]] == [("a", 1), ("b", 25)]


def test_only_the_asked_columns_come(write):
    found = profile(write("a.csv", "a,b,c\n1,2,3\n"), columns=["c", "a"])
    assert ([each["name"] for each in found["columns"]], found["total_columns"]) == (["c", "a"], 3)
    wide = profile(write("wide.csv", ",".join(f"c{n}" for n in range(60)) + "\n" + ",".join("1" * 60) + "\n"))
    assert (len(wide["columns"]), wide["total_columns"]) == (40, 60)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "'a.csv' is empty"),
        ("a.xlsx", "x", "'a.xlsx' is no data file that is read here; there are .csv, .tsv, "),
        ("a.json", '{"a": 1}', "'a.json' is no list of objects; give a file that begins with '['"),
        ("a.json", "[1, 2]", "'a.json' element 1 is no object"),
        ("a.json", '[{"a": 1} {"a": 2}]', "'a.json' element 1: after it, a ',' or ']' is missing"),
        ("a.json", '[{"a": 1}, {"a": ', "'a.json' element 2: Expecting value"),
        ("a.jsonl", '{"a": 1}\nnope\n', "'a.jsonl' line 2: Expecting value"),
        ("a.jsonl", "[" * 100_000, "'a.jsonl' line 1: "),
    ],
)
def test_what_is_no_data_is_refused_with_its_place(name, text, message, write):
    with pytest.raises(ValueError) as refused:
        profile(write(name, text))
    assert str(refused.value).startswith(message)


def test_other_refusals_name_the_fix(write):
    with pytest.raises(ValueError, match="leads out of the workspace; give a path relative to it"):
        profile("../a.csv")
    with pytest.raises(FileNotFoundError, match=r"there is no file 'b\.csv' in the workspace"):
        profile("b.csv")
    with pytest.raises(ValueError) as refused:
        profile(write("a.csv", "price,name\n1,x\n"), columns=["prise"])
    assert str(refused.value) == "'a.csv' has no column 'prise'; did you mean 'price'? It has price, name."


def test_a_long_element_is_read_across_chunks(write):
    rows = [{"a": "x" * 700_000}, {"a": "ü" * 300_001}]
    assert column(profile(write("a.json", json.dumps(rows, ensure_ascii=False))), "a")["lengths"] == [300_001, 700_000]


def test_a_long_file_is_never_whole_in_memory(write, call, monkeypatch):
    monkeypatch.setattr(tables, "BATCH_CHARACTERS", 500_000)
    name = write("a.csv", "id,text\n" + "".join(f"{index},{'x' * 1500}{index}\n" for index in range(15_000)))
    tracemalloc.start()
    found = profile(name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found["rows"], column(found, "id")["maximum"]) == (15_000, 14_999)
    assert peak < found["size"] / 2
    assert call.progress_reports[-1].total == found["size"]
    assert [report.done for report in call.progress_reports] == sorted(report.done for report in call.progress_reports)


def test_samples_are_fair_and_estimates_near():
    numbers = sketches.Numbers()
    values = list(range(200_000))
    random.Random(1).shuffle(values)
    for start in range(0, len(values), 7_000):
        numbers.add(values[start : start + 7_000])
    low, middle, high = numbers.quantiles(0.05, 0.5, 0.95)
    assert (low, middle, high) == (
        pytest.approx(10_000, abs=2_500),
        pytest.approx(100_000, abs=5_000),
        pytest.approx(190_000, abs=2_500),
    )
    assert numbers.mean == pytest.approx(99_999.5)
    assert numbers.deviation == pytest.approx(statistics.stdev(values))
    assert sum(numbers.histogram(10)) == pytest.approx(200_000, abs=10)
    distinct = sketches.Distinct()
    for start in range(0, len(values), 7_000):
        distinct.add([str(value) for value in values[start : start + 7_000]])
        distinct.add([str(value) for value in values[:100]])
    assert distinct.count() == pytest.approx(200_000, rel=0.1)
    assert distinct.is_estimate


def test_frequent_values_survive_many_rare_ones(write):
    rows = [f"rare{index}" if index % 5 else "often" for index in range(100_000)]
    found = column(profile(write("a.csv", "v\n" + "\n".join(rows) + "\n")), "v")
    assert found["top"][0] == {"value": "often", "count": 20_000}


def test_months_and_whole_numbers_are_counted_without_gaps(write):
    months = [f"{2024 + month // 12}-{month % 12 + 1:02d}-01" for month in range(24)]
    rows = "".join(f"{month},{number % 10}\n" for number, month in enumerate(months * 5))
    year, digit = profile(write("a.csv", "month,digit\n" + rows))["columns"]
    assert year["histogram"] == [10] * 12
    assert digit["histogram"] == [12] * 10
    [first] = profile(write("b.csv", "month\n" + "".join(f"{month}\n" for month in months[:12])))["columns"]
    assert first["histogram"] == [1] * 12
