"""Any toolset and any files come back as they were: through YAML, and through ZIPs byte for byte."""

from __future__ import annotations

import string
from io import BytesIO
from typing import Any

from amounts import amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.bundles import Toolset, dump, load, mask_secrets, read_zip, write_zip
from gateway.calls import to_json

from .forging import Forged, forge

ids = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,10}", fullmatch=True).map(lambda text: f"x{text}")
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
printable = st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp"))
lines = st.text(printable, min_size=1, max_size=30)
prose = st.text(printable | st.sampled_from("\n\t"), max_size=60)
plain = lines.map(lambda text: text.replace("${", "("))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
free = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=20).map(lambda text: text.replace("$", "")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


paths = st.sampled_from(["data", "/srv/files:rw", "~/notes", "${FOLDER}/x:rw"])
hosts = st.sampled_from(["example.org", "*.example.org:8443", "192.0.2.1"])


def settings_of(keys: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    references = names.map(lambda name: f"${{{name}}}")
    return st.dictionaries(keys, plain | references | references.map(lambda text: f"Bearer {text}"), max_size=3)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


common = optional(
    name=lines,
    description=prose,
    requires_confirmation=st.booleans() | st.none(),
    enabled=st.booleans(),
    tags=st.lists(lines, max_size=2),
    timeout=st.floats(0.5, 3600),
    input_schema=st.fixed_dictionaries({"type": st.just("object"), "default": free}),
    renderer=st.fixed_dictionaries({"type": st.just("code")}, optional={"content": free}),
)
python = st.fixed_dictionaries({"entrypoint": st.just("tools.files:run")})
shell = st.fixed_dictionaries(
    {"type": st.just("shell"), "command": st.lists(plain, max_size=3).map(lambda rest: ["ls", *rest])},
    optional={
        "env": st.dictionaries(names, plain, max_size=2),
        "stdin": st.text(max_size=9).filter(lambda t: "$" not in t),
    },
)
http = st.fixed_dictionaries(
    {"type": st.just("http"), "url_template": st.just("https://host/${a}?token=t")},
    optional={
        "headers": st.dictionaries(names.map(str.lower), plain, max_size=2),
        "query": st.dictionaries(names, plain, max_size=2),
        "body": free,
        "auth": st.fixed_dictionaries({"type": st.just("basic"), "username": plain, "password": plain}),
    },
)
steps = st.fixed_dictionaries(
    {
        "type": st.just("steps"),
        "steps": st.lists(
            st.fixed_dictionaries({"tool": st.just("read_file"), "args": st.dictionaries(names, free, max_size=2)}),
            min_size=1,
            max_size=3,
        ),
    },
    optional={"result": free},
)
server = st.fixed_dictionaries(
    {"command": plain},
    optional={
        "args": st.lists(plain, max_size=3),
        "env": settings_of(names),
        "sandbox": st.booleans() | optional(paths=st.lists(paths, max_size=2), network=st.lists(hosts, max_size=2)),
    },
) | st.fixed_dictionaries(
    {"url": st.just("https://host/?key=k")}, optional={"headers": settings_of(names.map(str.lower))}
)


def without_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A schema without properties would leave the placeholders of an HTTP tool unfilled."""
    return {key: value for key, value in tool.items() if key != "input_schema" or tool.get("type") != "http"}


@st.composite
def toolsets(draw: st.DrawFn) -> Toolset:
    tools = draw(st.lists(st.tuples(common, python | shell | http | steps), max_size=4))
    servers = draw(st.lists(server, max_size=3))
    data = {
        "id": draw(ids),
        "name": draw(lines),
        "version": draw(st.from_regex(r"[0-9]\.[1-9][0-9]?\.0(-rc\.[0-9])?", fullmatch=True)),
        **draw(optional(description=prose, permission=st.sampled_from(["read-only", "execute"]))),
        "tools": [without_schema({"id": f"t{n}", **both, **own}) for n, (both, own) in enumerate(tools)],
        "mcp_servers": [{"id": f"s{n}", **said} for n, said in enumerate(servers)],
    }
    if tools:
        data["tool_overrides"] = [{"tool_id": "t0", **draw(optional(enabled=st.booleans(), name_override=lines))}]
    return Toolset.model_validate_json(to_json(data))


@settings(deadline=None)
@given(toolsets())
def test_a_toolset_comes_back_from_its_yaml_and_gives_the_same_bytes(toolset: Toolset) -> None:
    text = dump(toolset)
    assert load(text) == toolset
    assert dump(load(text)) == text


@settings(deadline=None)
@given(toolsets())
def test_a_masked_toolset_is_a_toolset_and_stays_as_it_is(toolset: Toolset) -> None:
    masked = mask_secrets(toolset)
    assert load(dump(masked)) == masked
    assert mask_secrets(masked) == masked


parts = st.text(string.ascii_letters + "äé日_-. ", min_size=1, max_size=6).filter(
    lambda part: part.strip(" .") == part and part.lower() not in ("nul", "con", "aux", "prn")
)
paths = st.lists(parts, min_size=1, max_size=3).map("/".join)
contents = st.binary(max_size=200) | st.builds(bytes, st.integers(0, 3000))


@settings(deadline=None, max_examples=amount(60, 15))
@given(toolsets(), st.dictionaries(paths, st.tuples(contents, st.booleans(), st.sampled_from([0, 8])), max_size=6))
def test_import_export_import_is_lossless_byte_for_byte(
    toolset: Toolset, files: dict[str, tuple[bytes, bool, int]]
) -> None:
    kept = {f"a{number}/{path}": said for number, (path, said) in enumerate(files.items())}
    entries = [
        Forged(path, content, 0o100755 if run else 0o100644, method=how) for path, (content, run, how) in kept.items()
    ]
    manifest = Forged("toolset.yaml", dump(mask_secrets(toolset)).encode())
    first = read_zip(forge(manifest, Forged("tools/files.py"), *entries))
    out = BytesIO()
    write_zip(first, out)
    second = read_zip(out)
    again = BytesIO()
    write_zip(second, again)
    assert again.getvalue() == out.getvalue()
    assert (second.spec, second.digest) == (first.spec, first.digest)
    assert {path: (file.read(), file.executable) for path, file in second.files.items()} == {
        "tools/files.py": (b"", False),
        **{path: (content, run) for path, (content, run, _) in kept.items()},
    }
