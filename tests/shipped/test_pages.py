"""The pages of the data lab in a real browser, in a frame that may run scripts and nothing else."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.render import inject

ARTIFACTS = Path(__file__).parent.parent.parent / "toolsets/data-lab/artifacts"
PAGES = ["chart.html", "profile.html"]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

SHOUT = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
CHART: dict[str, Any] = {
    "title": f"Sales {SHOUT}",
    "kind": "bar",
    "x": {"label": "region", "type": "category"},
    "y": {"label": "units", "type": "number"},
    "series": [{"name": SHOUT, "points": [["North", 3], ["South", -1]]}, {"name": "b", "points": [["North", 2]]}],
    "width": None,
    "rows": 3,
    "remarks": ["1 row was left out"],
}
COLUMN: dict[str, Any] = {
    "name": SHOUT,
    "type": "integer",
    "missing": 1,
    "distinct": 3,
    "distinct_is_estimate": False,
    "minimum": 1,
    "maximum": 9,
    "mean": 4.5,
    "deviation": 2.5,
    "quantiles": {"p05": 1, "p25": 2, "median": 4, "p75": 6, "p95": 9},
    "histogram": [1, 0, 2],
    "lengths": None,
    "top": [{"value": SHOUT, "count": 2}],
    "remarks": ["one is odd"],
}
PROFILE: dict[str, Any] = {
    "file": "a.csv",
    "format": "csv",
    "encoding": "utf-8",
    "delimiter": ",",
    "size": 1234,
    "rows": 4,
    "total_columns": 1,
    "columns": [COLUMN],
    "sample": [{SHOUT: SHOUT}],
}


def shown(page: str, data: Any, tmp_path: Path, script: str = "") -> dict[str, Any]:
    """What a page has drawn, and the errors it met."""
    return told(dump(watched(page, data, script, "document.body.append(told)"), tmp_path))


def watched(page: str, data: Any, script: str, tell: str) -> str:
    """The page with its data, and with a script at its end that tells what there is to see."""
    watching = "<script>window.faults=[];addEventListener('error',(event)=>faults.push(event.message))</script>"
    telling = (
        f"<script>{script};{{const told=document.createElement('pre');told.id='told';told.textContent=JSON.stringify({{"
        "faults, title: document.title, text: document.querySelector('main').innerText,"
        f" marks: document.querySelectorAll('svg path, svg circle, svg rect').length}});{tell}}}</script>"
    )
    source = inject((ARTIFACTS / page).read_text(), data)
    return source.replace("<head>", f"<head>{watching}", 1).replace("</body>", f"{telling}</body>")


def dump(page: str, tmp_path: Path) -> str:
    """The document as the browser has it once the page is loaded."""
    (tmp_path / "page.html").write_text(page)
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    arguments = ["--virtual-time-budget=2000", "--dump-dom", str(tmp_path / "page.html")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300).stdout


def told(document: str) -> dict[str, Any]:
    found = re.search(r'<pre id="told">(.+?)</pre>', document, re.DOTALL)
    return json.loads(html.unescape(found[1])) if found else {}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_from_elsewhere(page: str) -> None:
    text = (ARTIFACTS / page).read_text()
    without_names = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|src=|@import|url\(|fetch\(|localStorage|document\.cookie|innerHTML", without_names)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("page", "data", "wanted"),
    [
        ("chart.html", CHART, ["Sales </script>", "3 rows", "1 row was left out."]),
        ("chart.html", {**CHART, "kind": "line"}, ["Sales"]),
        ("chart.html", {**CHART, "kind": "area"}, ["Sales"]),
        (
            "profile.html",
            PROFILE,
            ["a.csv", "4 rows · 1 column · 1.23 KB · CSV, comma · utf-8", "25% missing", "One is odd"],
        ),
    ],
)
def test_data_is_drawn_and_stays_data(page: str, data: Any, wanted: list[str], tmp_path: Path) -> None:
    told = shown(page, data, tmp_path)
    assert told["faults"] == []
    assert told["marks"] > 2
    assert told["title"] != "broken"
    assert not [text for text in wanted if text.lower() not in told["text"].lower()], told["text"]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_bars_of_months_are_named_by_month_to_the_last(tmp_path: Path) -> None:
    points = [[f"2026-{month:02d}-01", month] for month in range(1, 13)]
    by_month = {**CHART, "x": {"label": "month", "type": "date"}, "series": [{"name": "a", "points": points}]}
    labels = "document.title=[...document.querySelectorAll('svg text')].map((each)=>each.textContent).join('|')"
    title = shown("chart.html", by_month, tmp_path, labels)["title"]
    assert re.search(r"\|Jan 2026\|Feb\|Mar\|.*\|Dec\|", title), title


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "data", [None, {}, [], "text", {"series": None, "columns": None}, {"series": [{"points": [[None, None]]}]}]
)
def test_a_page_without_data_says_so(page: str, data: Any, tmp_path: Path) -> None:
    told = shown(page, data, tmp_path)
    assert (told["faults"], told["marks"]) == ([], 0)
    assert re.search(r"There is no data here|No row had something to draw|The file has no columns", told["text"])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_chart_is_read_with_the_keyboard(tmp_path: Path) -> None:
    press = "document.querySelector('svg').dispatchEvent(new KeyboardEvent('keydown',{key:'End'}))"
    read = "document.title=document.getElementById('spoken').textContent"
    assert shown("chart.html", CHART, tmp_path, f"{press};{read}")["title"] == f"South: {SHOUT} -1"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize(("page", "data"), [("chart.html", CHART), ("profile.html", PROFILE)])
def test_a_page_works_in_a_frame_that_may_only_run_scripts(page: str, data: Any, tmp_path: Path) -> None:
    framed = html.escape(watched(page, data, "", "parent.postMessage(told.textContent, '*')"))
    hearing = "<pre id=told></pre><script>onmessage=(event)=>{told.textContent=event.data}</script>"
    host = f'<!doctype html><body>{hearing}<iframe sandbox="allow-scripts" width=800 height=600 srcdoc="{framed}">'
    # The browser may write out the host before a message from the frame has arrived.
    found = next(filter(None, (told(dump(host, tmp_path)) for _ in range(8))))
    assert (found["faults"], found["marks"] > 2) == ([], True)
