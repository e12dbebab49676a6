"""Search over tools: the order of the answers, words as people write them, changes, and real catalogs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from amounts import amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import Gateway
from gateway.admin import switches
from gateway.search import SearchableTool, ToolIndex, argument_words, split_words

pytestmark = pytest.mark.promise("B5")

DATA = Path(__file__).parents[3] / "shared/data/tools"
# Each line: a request, and the tools of the data that satisfy it. Written before the ranking was.
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


@settings(max_examples=amount(100, 50, nightly=5000), deadline=None)
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), TOOLS, max_size=12), WORDS, st.data())
def test_prefix_comes_before_whole_word_before_near_word_before_last_use(
    tools: dict[str, SearchableTool], word: str, data: st.DataObject
) -> None:
    query = word[: data.draw(st.integers(1, len(word)))]
    last_used = {key: float(number) for number, key in enumerate(tools)}
    index = ToolIndex(tools)
    scores, _ = index._score([query])

    def place(key: str) -> tuple[int, float, float]:
        tool = tools[key]
        own = tool.name.replace("_", " ")
        without_server = own.removeprefix(tool.server).lstrip()  # which some servers put into the names of their tools
        names = (own, tool.server and f"{tool.server} {own}", without_server, tool.title)
        starts = any(name.startswith(query) for name in names)
        return 0 if starts else 1 if key in scores else 2, -scores.get(key, 0.0), -last_used[key]

    found = index.search(query, 100, last_used=last_used)
    order = [place(key) for key in found]
    assert [each[0] for each in order] == sorted(each[0] for each in order)
    assert [each for each in order if each[0] < 2] == sorted(each for each in order if each[0] < 2)
    assert {key for key in tools if place(key)[0] < 2} <= set(found)
    assert index.search(query, 3, last_used=last_used) == found[:3]


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


@pytest.mark.parametrize("query", ["", "  ", "?!", "_" * 9000, "a" * 100_000, "\x00\ud800", "the of a"])
def test_queries_without_words_find_nothing_or_little(query: str) -> None:
    index = ToolIndex({"read_file": SearchableTool("read_file", description="Read the file.")})
    assert index.search(query) == []


def test_only_the_tools_that_somebody_may_see_are_found() -> None:
    index = ToolIndex({name: SearchableTool(name) for name in ("read_a", "read_b")})
    assert index.search("read", among={"read_b"}) == ["read_b"]


def test_words_of_names_in_any_style() -> None:
    assert split_words("getDNSRecordsV1 API-post-page k8s_pods ÜberSicht") == [
        *("get", "dns", "records", "v1", "api", "post", "page", "k8s", "pods", "ü", "ber", "sicht")
    ]


@pytest.mark.anyio
async def test_search_follows_the_catalog(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path), "categories": {"editing": {"enabled": False}}}) as gateway:
        assert "write_file" not in [entry.name for entry in await gateway.search("write a file", 50)]
        await switches.change_category(gateway, "editing", {"enabled": True})
        assert (await gateway.search("write a file"))[0].name == "write_file"
        reading = gateway.catalog.filter(category="filesystem")
        assert {entry.tool.category for entry in await gateway.search("write a file", 50, reading)} == {"filesystem"}


@pytest.mark.skipif(not DATA.is_dir(), reason="the definitions of real tools are not here")
def test_real_tools_are_found_for_real_requests() -> None:
    """The limits are a little below what is reached, which docs/tools.md has."""
    index = ToolIndex(_real_tools())
    given_requests = [json.loads(line) for line in (DATA / "queries-dev.jsonl").read_text().splitlines()]
    own = [line.split("\t") for line in REQUESTS.read_text().splitlines()]
    for requests, least_first, least_five in (
        ([(each["query"], each["expected"]) for each in given_requests], 0.54, 0.74),
        ([(query, expected.split()) for query, expected in own], 0.60, 0.80),
    ):
        answers = [(index.search(query, 5), expected) for query, expected in requests]
        first = _share(answers, lambda found, expected: found[:1] != [] and found[0] in expected)
        five = _share(answers, lambda found, expected: not set(found).isdisjoint(expected))
        print(f"{len(requests)} requests: first {first:.3f}, in five {five:.3f}")
        assert (first >= least_first, five >= least_five) == (True, True)


def _real_tools() -> dict[str, SearchableTool]:
    tools = {}
    for line in (DATA / "tools.jsonl").read_text().splitlines():
        tool = json.loads(line)
        arguments = argument_words(tool["inputSchema"])
        title = tool.get("title") or (tool.get("annotations") or {}).get("title") or ""
        description = tool.get("description") or ""
        tools[tool["id"]] = SearchableTool(tool["name"], title, tool["server"], description, arguments)
    return tools


def _share(
    answers: Sequence[tuple[list[str], Sequence[str]]], is_right: Callable[[list[str], Sequence[str]], bool]
) -> float:
    return sum(is_right(found, expected) for found, expected in answers) / len(answers)
