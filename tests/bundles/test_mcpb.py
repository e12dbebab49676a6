"""`.mcpb` files: read strictly, unpacked whole or not at all, and planned without anything of the gateway's own."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import struct
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packages import MANIFEST, TINY, make_mcpb

from gateway.admin.upstream_packages import ServerPlan, Values, plan_bundle
from gateway.bundles.mcpb import McpbBundle, McpbManifest, read_unpacked, unpack_mcpb
from gateway.errors import Invalid, NotFound
from gateway.secrets import VARIABLE

from .forging import LINK, Forged, forge

MANIFEST_BYTES = json.dumps(MANIFEST).encode()
MAIN = Forged("server/main.py", b"pass")


def unpack(tmp_path: Path, content: bytes) -> McpbBundle:
    file = tmp_path / "server.mcpb"
    file.write_bytes(content)
    return unpack_mcpb(file, lambda digest: tmp_path / "mcpb" / digest)


def plan(tmp_path: Path, manifest: dict[str, Any], values: Values | None = None) -> ServerPlan:
    return plan_bundle(unpack(tmp_path, make_mcpb(manifest)), None, values or {}, "server.mcpb")


def change(**server: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    manifest["server"] |= server
    return manifest


def test_mcpb_is_unpacked_read_only_by_its_digest_and_again_without_harm(tmp_path: Path) -> None:
    content = make_mcpb()
    bundle = unpack(tmp_path, content)
    assert bundle.digest == hashlib.sha256(content).hexdigest()
    assert (bundle.folder / "server/main.py").read_text() == TINY.read_text()
    assert (bundle.folder / "server/main.py").stat().st_mode & 0o777 == 0o444
    assert unpack(tmp_path, content) == bundle
    assert [path.name for path in (tmp_path / "mcpb").iterdir()] == [bundle.digest]


@pytest.mark.parametrize("counted", [False, True], ids=["after the file", "as its comment"])
def test_mcpb_signature_is_left_aside(tmp_path: Path, counted: bool) -> None:
    content, signature = make_mcpb(), b"MCPB_SIG_V1" + struct.pack("<L", 4) + b"\0\1\2\3" + b"MCPB_SIG_END"
    signed = content[:-2] + struct.pack("<H", len(signature)) if counted else content
    bundle = unpack(tmp_path, signed + signature)
    assert bundle.signed
    assert bundle.manifest.title == "Tiny demo"


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([Forged("../evil", b"x")], "'..'"),
        ([Forged("/etc/evil", b"x")], "absolute"),
        ([Forged("server/link", b"/etc/passwd", mode=LINK)], "symbolic link"),
        ([Forged("server/MAIN.py", b"x")], "one path on some systems"),
        ([Forged("bomb", b"\0" * 3_000_000, method=8)], "200 times"),
        ([Forged("short", b"abc", size=2)], "more than it declares|contradict"),
    ],
)
def test_mcpb_with_hostile_entries_leaves_nothing_behind(tmp_path: Path, entries: list[Forged], reason: str) -> None:
    content = forge(Forged("manifest.json", MANIFEST_BYTES), MAIN, *entries)
    with pytest.raises(Invalid, match=reason):
        unpack(tmp_path, content.getvalue())
    assert not (tmp_path / "mcpb").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.mcpb"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no zip", "no end record"),
        (forge(MAIN).getvalue(), "no manifest.json"),
        (make_mcpb(change(entry_point="other.py")), "entry point"),
        (make_mcpb({**MANIFEST, "compatibility": {"platforms": ["amiga"]}}), "amiga"),
        (make_mcpb(change(type="wasm")), "server.type"),
        (forge(Forged("manifest.json", b"[" * 100_000)).getvalue(), "JSON"),
        (b"MCPB_SIG_V1MCPB_SIG_END", "where the signature"),
    ],
)
def test_mcpb_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        unpack(tmp_path, content)
    with pytest.raises(NotFound):
        unpack_mcpb(tmp_path / "nothing.mcpb", lambda digest: tmp_path / digest)


def test_mcpb_plan_shows_what_runs_and_keeps_secrets_apart(tmp_path: Path) -> None:
    made = plan(tmp_path, MANIFEST, {"folders": ["/a", "/b"]})
    settings = dict(made.settings)
    assert settings["args"] == ["${__dirname}/server/main.py", "--folder", "/a", "/b"]
    assert settings["env"] == {"API_KEY": "${PACKAGE_TINY_DEMO_API_KEY}", "MODE": "plain", "PLATFORM": str(Path.home())}
    assert settings["sandbox"] == {"paths": ["/a:rw", "/b:rw"]}
    lines = dict(made.lines)
    assert lines["rights"] == "in the sandbox; folders: /a:rw /b:rw; hosts: none"
    assert "--folder /a /b" in lines["command"]
    assert [(each.name, each.required, each.secret) for each in made.inputs] == [
        ("api_key", True, True),
        ("folders", False, False),
        ("mode", False, False),
    ]
    assert plan(tmp_path, MANIFEST).settings["args"] == ["${__dirname}/server/main.py", "--folder"]
    with pytest.raises(Invalid, match="does not ask for 'folder'; did you mean 'folders'"):
        plan(tmp_path, MANIFEST, {"folder": ["/a"]})


@pytest.mark.parametrize("text", ["${AWS_SECRET_ACCESS_KEY}", "x${PATH}", "${user_config.unknown}", "${env.HOME}"])
def test_mcpb_cannot_name_variables_of_the_gateway(tmp_path: Path, text: str) -> None:
    config = {**MANIFEST["server"]["mcp_config"], "env": {"X": text}}
    with pytest.raises(Invalid, match="refers to"):
        plan(tmp_path, change(mcp_config=config))


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("$${user_config.mode}{PATH}", {"type": "string"}),
        ("${user_config.mode}{PATH}", {"type": "string", "default": "$"}),
        ("$${user_config.mode}", {"type": "string", "default": "{PATH}"}),
    ],
)
def test_mcpb_cannot_put_the_name_of_a_variable_together(tmp_path: Path, text: str, config: dict[str, Any]) -> None:
    manifest = change(mcp_config={**MANIFEST["server"]["mcp_config"], "env": {"X": text}})
    manifest["user_config"] = {**MANIFEST["user_config"], "mode": config}
    with pytest.raises(Invalid, match=r"refers to \$\{PATH\}, a variable of the gateway"):
        plan(tmp_path, manifest)
    assert "${PATH}" in plan(tmp_path, manifest, {"mode": ["${PATH}"]}).settings["env"]["X"]


def test_mcpb_of_any_texts_names_no_variable_of_the_gateway() -> None:
    pieces = ("$", "{PATH}", "${user_config.a}", "${user_config.b}", "x")
    refused = 0
    for text, default in product(map("".join, product(pieces, repeat=3)), ("", "$", "{PATH}", "${/}", "x")):
        start = {"command": "python", "args": [text], "env": {"A": text}}
        asked = {"a": {"type": "string", "default": default}, "b": {"type": "string", "sensitive": True}}
        manifest = McpbManifest.model_validate({**change(mcp_config=start), "user_config": asked})
        try:
            made = plan_bundle(McpbBundle("0" * 64, manifest, Path()), "x", {"b": ["given"]}, "a.mcpb")
        except Invalid:
            refused += 1
        else:
            assert {*VARIABLE.findall(json.dumps(made.settings))} <= {"PACKAGE_X_B"}, (text, default)
    assert 0 < refused < 625


def test_mcpb_cannot_hide_a_line_of_its_plan(tmp_path: Path) -> None:
    config = {**MANIFEST["server"]["mcp_config"], "env": {"X\x1b[2J\nY": "\u202e"}}
    assert all(text.isascii() and text.isprintable() for _, text in plan(tmp_path, change(mcp_config=config)).lines)


@pytest.mark.parametrize("default", ["\ud800", {"a": 1}, [["a"]]])
def test_mcpb_default_that_is_no_value_is_refused(tmp_path: Path, default: Any) -> None:
    manifest = {**MANIFEST, "user_config": {"api_key": {"type": "string", "default": default}}}
    with pytest.raises(Invalid, match="default"):
        plan(tmp_path, manifest)


@pytest.mark.parametrize(
    "project",
    ["project = 1", "[project]\ndependencies = 5", "[project]\ndependencies = [1]", "a = " + "[" * 100_000, "\0"],
)
def test_mcpb_of_uv_with_a_project_that_cannot_be_read_is_refused(tmp_path: Path, project: str) -> None:
    manifest = {**change(type="uv", entry_point="main.py", mcp_config=None), "user_config": {}}
    bundle = unpack(tmp_path, make_mcpb(manifest, {"main.py": "pass", "pyproject.toml": project}))
    with pytest.raises(Invalid, match=r"pyproject\.toml"):
        plan_bundle(bundle, None, {}, "a.mcpb")


def test_mcpb_that_is_looked_at_again_is_kept_for_another_hour(tmp_path: Path) -> None:
    content = make_mcpb()  # its files carry the time
    bundle = unpack(tmp_path, content)
    for again in range(2):
        os.utime(bundle.folder, (0, 0))
        looked_at = read_unpacked(bundle.folder, bundle.digest) if again else unpack(tmp_path, content)
        assert looked_at.manifest == bundle.manifest
        assert bundle.folder.stat().st_mtime > 0


def test_mcpb_of_uv_runs_from_a_read_only_folder(tmp_path: Path) -> None:
    manifest = {**change(type="uv", entry_point="main.py", mcp_config=None), "user_config": {}}
    project = '[project]\nname = "a"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["mcp>=1", "httpx"]\n'
    files = {"main.py": "pass", "pyproject.toml": project}
    bundle = unpack(tmp_path, make_mcpb(manifest, files))
    made = plan_bundle(bundle, None, {}, "a.mcpb")
    script = "${__dirname}/main.py"
    assert made.settings["args"] == ["run", "--no-project", "--python=>=3.10", "--with=mcp>=1", "--with=httpx", script]
    assert made.settings["sandbox"] == {"network": ["pypi.org", "files.pythonhosted.org"]}
    locked = unpack(tmp_path, make_mcpb(manifest, {**files, "uv.lock": "version = 1"}))
    assert plan_bundle(locked, None, {}, "a.mcpb").settings["args"][1] == "--frozen"


def test_mcpb_program_is_executable_though_the_file_has_no_modes(tmp_path: Path) -> None:
    manifest = change(type="binary", entry_point="bin/run", mcp_config={"command": "${__dirname}/bin/run"})
    content = forge(Forged("manifest.json", json.dumps(manifest).encode()), Forged("bin/run", b"#!/bin/sh\n", mode=0))
    assert isinstance(content, BytesIO)
    bundle = unpack(tmp_path, content.getvalue())
    assert (bundle.folder / "bin/run").stat().st_mode & 0o111
