"""Wire names, their assignment, chat folders and ids."""

from __future__ import annotations

import re
import time
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import names

IDS = st.one_of(st.text(min_size=1, max_size=90), st.from_regex(r"[a-z]{1,40}:[a-z_]{1,60}", fullmatch=True))
WIRE = re.compile(r"[A-Za-z0-9_-]{1,64}")


@pytest.mark.parametrize(
    ("tool_id", "prefix", "name"),
    [
        ("read_file", None, "read_file"),
        ("app-builder:write_file", None, "app-builder__write_file"),
        ("app-builder:write_file", "ab", "ab__write_file"),
        ("app-builder:write_file", "", "write_file"),
    ],
)
def test_a_plain_name_is_left_as_it_is(tool_id: str, prefix: str | None, name: str) -> None:
    assert names.wire_name(tool_id, prefix) == name


@given(IDS)
def test_every_name_satisfies_every_client(tool_id: str) -> None:
    assert WIRE.fullmatch(names.wire_name(tool_id))


@given(IDS, IDS)
def test_two_ids_meet_in_one_name_only_by_spelling_it_alike(one: str, other: str) -> None:
    if names.wire_name(one) == names.wire_name(other):
        assert one.replace(":", "__") == other.replace(":", "__") or one == other


@given(st.dictionaries(IDS, st.sampled_from(["a", "b", "c"]), max_size=12), st.data())
def test_assigned_names_are_unique_and_do_not_depend_on_the_order(wanted: dict[str, str], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(wanted.items()))))
    assigned = names.assign(wanted, {})
    assert assigned == names.assign(shuffled, {})
    assert len(set(assigned.values())) == len(wanted)


@given(st.dictionaries(IDS, st.sampled_from(["a", "b"]), max_size=8), st.dictionaries(IDS, st.just("a"), max_size=8))
def test_a_name_once_given_never_changes_its_meaning(first: dict[str, str], later: dict[str, str]) -> None:
    given_first = names.assign(first, {})
    taken = {name: tool_id for tool_id, name in given_first.items()}
    given_later = names.assign({**later, **first}, taken)
    assert {tool_id: given_later[tool_id] for tool_id in first} == given_first


@pytest.mark.parametrize(
    ("own", "readable"),
    [
        ("поиск_файлов", "poisk_failov"),
        ("Größe-messen", "Grosse-messen"),
        ("αναζήτηση", "anazitisi"),
        ("날씨", "nalssi"),
        ("てんき", "tenki"),
        ("سلام", "slam"),
        ("שלום", "shlvm"),
        ("नमस्ते", "namasatae"),
        ("天気-now", "_-now"),
    ],
)
def test_name_in_another_script_is_transliterated_and_ends_in_a_digest(own: str, readable: str) -> None:
    name = names.wire_name(f"srv:{own}")
    assert re.fullmatch(f"srv__{re.escape(readable)}_[0-9a-f]{{8}}", name)


def test_colon_in_the_name_of_a_tool_stays_with_the_tool() -> None:
    assert names.wire_name("srv:a:b", "").startswith("a_b_")


def test_wish_that_changes_is_granted_unless_the_name_belongs_to_another() -> None:
    assert names.assign({"a:x": "new__x"}, {"old__x": "a:x"}) == {"a:x": "new__x"}
    assert names.assign({"b:x": "old__x"}, {"old__x": "a:x"})["b:x"].startswith("old__x_")


def test_name_that_imitates_a_digest_takes_no_other_name() -> None:
    digested = names.with_digest("x", "b:x")
    assigned = names.assign({"a:x": "x", "b:x": "x"}, {digested: "evil:x"})
    assert len({*assigned.values(), digested}) == 3


def test_a_builtin_comes_before_an_upstream_of_the_same_name() -> None:
    assert names.assign({"fs:read_file": "read_file", "read_file": "read_file"}, {})["read_file"] == "read_file"


@given(st.text(min_size=1), st.text(min_size=1))
def test_chats_share_no_folder_even_where_case_is_folded(one: str, other: str) -> None:
    folders = [names.chat_directory(chat) for chat in (one, other)]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", folder) for folder in folders)
    assert (folders[0] == folders[1]) == (one == other)
    assert one == folders[0] or names.chat_directory(folders[0]) != folders[0], "the name of a folder is another chat"


def test_ids_are_uuid7_and_sort_by_time() -> None:
    ids = [names.new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {uuid.UUID(value).version for value in ids} == {7}
    assert {uuid.UUID(value).variant for value in ids} == {uuid.RFC_4122}
    milliseconds = [uuid.UUID(value).int >> 80 for value in ids]
    assert milliseconds == sorted(milliseconds)
    assert abs(milliseconds[-1] - time.time() * 1000) < 60_000


def test_ids_made_in_a_row_sort_as_they_were_made_to_a_quarter_of_a_microsecond() -> None:
    ids = [names.new_id() for _ in range(10_000)]
    assert all(len(value) == 36 and [value[at] for at in (8, 13, 18, 23)] == ["-"] * 4 for value in ids)
    moments = [value[:18] for value in ids]  # the version among them, the same in all
    assert moments == sorted(moments)
    apart = [(one, other) for one, other in pairwise(ids) if one[:18] != other[:18]]
    assert len(apart) > 5000  # hardly two are made so quickly
    assert all(one < other for one, other in apart)


@given(st.integers(min_value=0, max_value=2**48 * 1_000_000 - 1))
def test_an_id_tells_its_moment(nanoseconds: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: nanoseconds)
        made = uuid.UUID(names.new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    told = ((made.int >> 80) * 4096 + (made.int >> 64 & 0xFFF)) * 1_000_000  # in 4096ths of a nanosecond
    assert told <= nanoseconds * 4096 < told + 1_000_000


def test_the_nearest_word_is_offered_only_when_one_is_near() -> None:
    assert names.did_you_mean("red_file", ["read_file", "write_file"]) == "; did you mean 'read_file'?"
    assert names.did_you_mean("zzz", ["read_file"]) == ""


def test_guess_of_a_word_is_near_or_has_the_same_first_letter() -> None:
    keys = ["category", "name", "permission", "version", "tools"]
    assert names.did_you_mean("autor", keys) == ""
    assert names.did_you_mean("permision", keys) == "; did you mean 'permission'?"
    assert names.did_you_mean("tols", keys) == "; did you mean 'tools'?"
    assert names.did_you_mean("ersion", keys) == "; did you mean 'version'?"
