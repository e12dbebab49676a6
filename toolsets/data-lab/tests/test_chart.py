"""Charts: how rows become points, and the report of those left out."""

import pytest
from tools import groups
from tools.chart import chart_data

from covalt_toolset import BadArguments, invoke

SALES = (
    "day,region,units\n2024-01-01,North,1\n2024-01-15,North,3\n2024-01-20,South,10\n"
    "2024-02-03,North,5\n2024-02-04,South,n/k\n,South,7\n"
)


def chart(path, **arguments):
    return invoke(chart_data, {"path": path, **arguments})


def points(drawn):
    return {each["name"]: each["points"] for each in drawn["series"]}


def test_rows_with_the_same_x_become_one_point(write):
    write("a.csv", SALES)
    drawn = chart("a.csv", x="region", y="units", kind="bar")
    assert points(drawn) == {"units": [["South", 17], ["North", 9]]}
    assert (drawn["title"], drawn["x"]["type"], drawn["rows"]) == ("units by region", "category", 6)
    assert drawn["remarks"] == ["1 rows lack 'region' and a number in 'units' and are left out"]
    assert points(chart("a.csv", x="region", kind="bar")) == {"rows": [["North", 3], ["South", 3]]}


@pytest.mark.parametrize(("how", "north"), [("sum", 9), ("mean", 3), ("count", 3), ("min", 1), ("max", 5)])
def test_every_aggregate(how, north, write):
    drawn = chart(write("a.csv", SALES), x="region", y="units", kind="bar", aggregate=how)
    assert dict(points(drawn)["units"])["North"] == north


def test_dates_are_put_together_by_calendar_and_split_into_series(write):
    write("a.csv", SALES)
    drawn = chart("a.csv", x="day", y="units", period="month", aggregate="sum", series="region")
    assert points(drawn) == {"North": [["2024-01-01", 4], ["2024-02-01", 5]], "South": [["2024-01-01", 10]]}
    assert drawn["x"] == {"label": "day", "type": "date"}


@pytest.mark.parametrize(
    ("period", "begins"),
    [
        ("day", "2024-08-29"),
        ("week", "2024-08-26"),
        ("month", "2024-08-01"),
        ("quarter", "2024-07-01"),
        ("year", "2024-01-01"),
    ],
)
def test_periods_begin_where_the_calendar_says(period, begins, write):
    drawn = chart(write("a.csv", "t,v\n2024-08-29T23:59:59,1\n"), x="t", y="v", period=period)
    assert points(drawn) == {"v": [[begins, 1]]}


def test_where_chooses_the_rows(write):
    write("a.csv", SALES)
    for where, rows in [
        ([{"column": "region", "value": "North"}], 3),
        ([{"column": "units", "is": ">=", "value": 5}], 3),
        ([{"column": "units", "is": "=", "value": 5.0}], 1),
        ([{"column": "day", "is": "<", "value": "2024-02-01"}], 3),
        ([{"column": "day", "is": "is missing"}], 1),
        ([{"column": "region", "is": "in", "value": ["South", "East"]}], 3),
        ([{"column": "region", "is": "contains", "value": "ORT"}, {"column": "units", "is": "!=", "value": 1}], 2),
    ]:
        assert chart("a.csv", x="region", kind="bar", where=where)["rows"] == rows, where


def test_too_many_numbers_along_x_are_put_together_without_losing_any(write, monkeypatch):
    monkeypatch.setattr(groups, "KEYS_LIMIT", 1000)
    text = "x,y\n" + "".join(f"{index},1\n" for index in range(5_000))
    drawn = chart(write("a.csv", text), x="x", y="y", aggregate="sum", points=50)
    found = points(drawn)["y"]
    assert (drawn["width"], found[:2]) == (100, [[0, 100], [100, 100]])
    assert sum(value for _, value in found) == 5_000
    assert drawn["remarks"] == ["neighbours along x were put together"]


def test_too_many_dates_along_x_become_lengths_of_time_one_knows(write):
    text = "t,y\n" + "".join(
        f"2024-{1 + index // 28:02}-{1 + index % 28:02}T{h:02}:30,1\n" for index in range(300) for h in (1, 13)
    )
    drawn = chart(write("a.csv", text), x="t", y="y", aggregate="sum", points=100)
    assert drawn["width"] == 7 * 86_400
    assert drawn["x"]["type"] == "date"
    assert sum(value for _, value in points(drawn)["y"]) == 600


def test_too_many_categories_are_left_out_or_refused(write, monkeypatch):
    text = "x,y\n" + "".join(f"c{index},{index}\n" for index in range(100))
    drawn = chart(write("a.csv", text), x="x", y="y", kind="bar")
    assert points(drawn)["y"][0] == ["c99", 99]
    assert (len(points(drawn)["y"]), drawn["remarks"]) == (40, ["40 of 100 categories are drawn"])
    monkeypatch.setattr(groups, "KEYS_LIMIT", 50)
    with pytest.raises(
        ValueError, match="there are more than 50 different values along 'x'; choose a column of numbers"
    ):
        chart("a.csv", x="x", y="y", kind="bar")


def test_the_largest_series_are_drawn(write):
    text = "x,y,s\n" + "".join(f"1,1,s{index}\n" * (index + 1) for index in range(12))
    drawn = chart(write("a.csv", text), x="x", y="y", series="s")
    assert list(points(drawn)) == [f"s{index}" for index in range(11, 3, -1)]
    assert drawn["remarks"] == ["the 8 largest of 12 series are drawn"]


def test_a_scatter_shows_a_fair_sample(write):
    text = "x,y\n" + "".join(f"{index},{index * 2}\n" for index in range(20_000)) + "a,1\n"
    drawn = chart(write("a.csv", text), x="x", y="y", kind="scatter", points=500)
    found = points(drawn)["y"]
    assert (len(found), all(y == 2 * x for x, y in found)) == (500, True)
    assert 8_000 < sum(x for x, _ in found) / 500 < 12_000
    assert drawn["remarks"] == [
        "500 of 20,000 points are drawn, chosen by chance",
        "1 rows have no number in 'x' or 'y' and are left out",
    ]


def test_a_histogram_counts_every_number(write):
    drawn = chart(write("a.csv", "x\n" + "1\n2\n3\n" * 100 + "-\n"), x="x", kind="histogram")
    assert (sum(count for _, count in points(drawn)["x"]), drawn["remarks"]) == (
        300,
        ["1 rows have no number in 'x' and are left out"],
    )
    same = chart(write("b.csv", "x\n5\n5\n"), x="x", kind="histogram")
    assert (points(same), same["width"]) == ({"x": [[5, 2]]}, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"x": "region", "y": "unit"},
            "'a.csv' has no column 'unit'; did you mean 'units'? It has day, region, units.",
        ),
        ({"x": "day", "kind": "scatter"}, "a scatter chart needs 'y', a column of numbers"),
        ({"x": "day", "y": "units", "kind": "histogram"}, "a histogram shows how the numbers in 'x' are spread; "),
        ({"x": "region", "kind": "histogram"}, "there are no numbers in 'region'; choose kind 'bar'"),
        ({"x": "region", "aggregate": "sum"}, "'aggregate' 'sum' needs 'y', a column of numbers"),
        ({"x": "day", "y": "units", "kind": "area", "aggregate": "mean"}, "areas stand upon each other"),
        ({"x": "region", "y": "units", "period": "month"}, "'period' is for dates, and 'region' has none"),
        (
            {"x": "day", "y": "region"},
            "there is nothing to draw: of 6 rows, none has both 'day' and a number in 'region'",
        ),
        ({"x": "day", "where": [{"column": "units", "is": ">"}]}, "the condition on 'units' has no 'value'"),
        ({"x": "day", "where": [{"column": "nope", "value": 1}]}, "'a.csv' has no column 'nope'. It has day, "),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_fix(arguments, message, write):
    write("a.csv", SALES)
    with pytest.raises(ValueError) as refused:
        chart("a.csv", **arguments)
    assert str(refused.value).startswith(message)


def test_a_misspelt_condition_is_refused_before_anything_is_read():
    with pytest.raises(BadArguments, match=r"'where.0.operator' is not expected"):
        chart("a.csv", x="x", where=[{"column": "a", "operator": ">", "value": 1}])
