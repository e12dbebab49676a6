"""Bundles from ZIPs and folders: what is in them, what is left out, and that they pack to the same bytes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from gateway.bundles import Bundle, BundleLimits, open_bundle, read_folder, read_zip, write_zip
from gateway.bundles.archive import file_kind
from gateway.errors import Conflict, Invalid, NotFound

from .forging import MANIFEST, Forged, bundle, forge

TOOL = MANIFEST + b"tools:\n- {id: a, entrypoint: 'tools.files:run'}\n"


def packed(found: Bundle) -> bytes:
    file = BytesIO()
    write_zip(found, file)
    return file.getvalue()


def folder_at(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def test_a_folder_and_its_zip_are_the_same_bundle(tmp_path: Path) -> None:
    files = {"toolset.yaml": TOOL, "tools/files.py": b"x", ".hidden": b"h", "assets/größe.txt": b"g"}
    folder = folder_at(tmp_path / "demo", files)
    (folder / "tools" / "files.py").chmod(0o755)
    from_folder = read_folder(folder)
    archive = shutil.make_archive(str(tmp_path / "demo"), "zip", folder)
    with open_bundle(Path(archive)) as from_zip, open_bundle(folder) as again:
        assert from_zip.digest == from_folder.digest == again.digest
        assert packed(from_zip) == packed(from_folder)
        assert {path: file.read() for path, file in from_zip.files.items()} == {
            path: content for path, content in files.items() if path != "toolset.yaml"
        }
    file = from_folder.files["tools/files.py"]
    assert (file.size, file.sha256, file.kind, file.executable) == (1, hashlib.sha256(b"x").hexdigest(), "python", True)


def test_what_is_packed_can_be_read_by_everyone(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, {"toolset.yaml": MANIFEST, "run.sh": b"#!", "assets/größe": b"g" * 70_000})
    (folder / "run.sh").chmod(0o755)
    with zipfile.ZipFile(BytesIO(packed(read_folder(folder)))) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["toolset.yaml", "assets/größe", "run.sh"]
        assert archive.read("assets/größe") == b"g" * 70_000
        assert [info.external_attr >> 16 for info in archive.infolist()] == [0o100644, 0o100644, 0o100755]
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_an_archive_of_git_with_its_folder_and_its_comment_is_taken(tmp_path: Path) -> None:
    folder_at(tmp_path / "repo", {"toolset.yaml": TOOL, "tools/files.py": b"x"})
    git = ["git", "-C", str(tmp_path / "repo"), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    packing = [*git, "archive", "--format=zip", "--prefix=demo-1.0/", "HEAD"]
    archive = subprocess.run(packing, check=True, capture_output=True).stdout
    assert list(read_zip(BytesIO(archive)).files) == ["tools/files.py"]


def test_a_zip_that_was_streamed_is_taken() -> None:
    class Pipe(BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

        def tell(self) -> int:
            raise OSError

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toolset.yaml", MANIFEST)
        archive.writestr("assets/a", b"a" * 1000)
    assert read_zip(BytesIO(pipe.getvalue())).files["assets/a"].read() == b"a" * 1000


def test_what_tools_leave_behind_is_left_out(tmp_path: Path) -> None:
    litter = [".git/config", "tools/__pycache__/a.pyc", ".DS_Store", "assets/.DS_Store", "__MACOSX/._toolset.yaml"]
    entries = [Forged(f"demo/{name}" if name[0] != "_" else name, b"x") for name in [*litter, "kept/.env.example"]]
    found = read_zip(forge(Forged("demo/toolset.yaml", MANIFEST), *entries))
    assert list(found.files) == ["kept/.env.example"]
    folder = folder_at(tmp_path, {"toolset.yaml": MANIFEST, **dict.fromkeys(litter, b"x"), "kept/.env.example": b"x"})
    assert read_folder(folder).digest == found.digest


def test_only_a_folder_around_everything_is_taken_off() -> None:
    wrapped = forge(Forged("demo/toolset.yaml", MANIFEST), Forged("demo/lib/util.py", b"x"))
    assert list(read_zip(wrapped).files) == ["lib/util.py"]
    assert list(read_zip(bundle(Forged("lib/util.py", b"x"))).files) == ["lib/util.py"]


def test_the_other_spelling_of_the_manifest_is_taken() -> None:
    assert read_zip(forge(Forged("toolset.yml", MANIFEST))).digest == read_zip(bundle()).digest


def test_a_schema_error_names_file_and_line() -> None:
    with pytest.raises(Invalid, match=r"toolset.yml line 4: 'colour': unknown key") as refused:
        read_zip(forge(Forged("toolset.yml", MANIFEST + b"colour: red\n")))
    assert refused.value.code == "INVALID_TOOLSET"


@pytest.mark.parametrize("module", ["tools/files.py", "tools/files/__init__.py", "tools/tools/files.py"])
def test_an_entrypoint_is_found_at_the_top_or_in_tools(module: str) -> None:
    assert read_zip(bundle(Forged(module, b"x"), manifest=TOOL)).spec.tools[0].id == "a"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TOOL, "line 5: 'tools.0.entrypoint': there is no tools/files.py nor tools/tools/files.py in the bundle"),
        (TOOL.replace(b"files", b"fils"), "did you mean 'tools/file.py'?"),
        (
            TOOL.replace(b"files", b"file").replace(b"}", b", renderer: {type: html, artifact: ./artifacts/x.html}}"),
            "line 5: 'tools.0.renderer.artifact': there is no artifacts/x.html in the bundle",
        ),
        (
            TOOL.replace(b"files", b"file")
            + b"tool_overrides:\n- {tool_id: a, renderer: html, rendererConfig: {artifact: $toolset/x.html}}\n",
            "line 7: 'tool_overrides.0.renderer_config.artifact': there is no x.html in the bundle",
        ),
    ],
)
def test_what_is_declared_must_be_in_the_bundle(text: bytes, complaint: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_zip(bundle(Forged("tools/file.py", b"x"), manifest=text))
    assert complaint in refused.value.message


def test_the_code_of_a_tool_that_is_known_may_have_gone(tmp_path: Path) -> None:
    known = frozenset(["demo:a", "other:b"])
    found = read_zip(bundle(manifest=TOOL), known=known)
    assert dict(found.absent) == {"a": "there is no tools/files.py nor tools/tools/files.py in the bundle"}
    assert read_zip(bundle(Forged("tools/files.py"), manifest=TOOL), known=known).absent == {}
    with pytest.raises(Invalid, match=r"'tools\.0\.entrypoint'"):
        read_zip(bundle(manifest=TOOL), known=frozenset(["other:a", "a"]))
    folder_at(tmp_path, {"toolset.yaml": TOOL})
    with open_bundle(tmp_path, known=known) as again:
        assert again.absent == found.absent


@pytest.mark.parametrize(
    "name", [".env", "assets/.env.local", "a.pem", "tls/server.KEY", "id_ed25519", ".netrc", "x.p12", ".pypirc"]
)
def test_a_file_where_secrets_are_kept_is_refused_by_name_with_the_fix(name: str) -> None:
    with pytest.raises(Invalid, match=r"holds secrets.*declare the variable under 'secrets' instead") as refused:
        read_zip(bundle(Forged(name, b"x")))
    assert refused.value.details["path"] == name


@pytest.mark.parametrize("name", [".env.example", "assets/.env.sample", "env.py", "keys.py", "monkey", "a.pem.txt"])
def test_a_file_that_only_sounds_so_is_taken(name: str) -> None:
    assert list(read_zip(bundle(Forged(name, b"x"))).files) == [name]


def test_a_file_that_shrinks_like_a_bomb_is_packed_so_that_it_can_be_read_again(tmp_path: Path) -> None:
    folder_at(tmp_path, {"toolset.yaml": MANIFEST, "assets/zeros": bytes(3 * 1024 * 1024), "assets/small": bytes(1000)})
    again = read_zip(BytesIO(packed(read_folder(tmp_path))))
    assert again.digest == read_folder(tmp_path).digest


def test_content_does_not_depend_on_how_it_arrives(tmp_path: Path) -> None:
    content = b"".join(hashlib.sha256(str(number // 3).encode()).digest() for number in range(40_000))
    folder_at(tmp_path, {"toolset.yaml": MANIFEST, "assets/large": content})
    once = packed(read_folder(tmp_path))
    assert packed(read_zip(BytesIO(once))) == once


def test_a_secret_in_the_manifest_does_not_leave() -> None:
    manifest = MANIFEST + b"mcp_servers:\n- {id: s, command: x, env: {KEY: s3cret}}\n"
    out = packed(read_zip(bundle(manifest=manifest)))
    with zipfile.ZipFile(BytesIO(out)) as archive:
        assert b"s3cret" not in archive.read("toolset.yaml")
    assert read_zip(BytesIO(out)).spec.mcp_servers[0].env == {"KEY": "${KEY}"}


def test_a_file_that_changes_after_it_was_checked_is_noticed(tmp_path: Path) -> None:
    folder_at(tmp_path, {"toolset.yaml": MANIFEST, "assets/a": b"before"})
    found = read_folder(tmp_path)
    (tmp_path / "assets" / "a").write_bytes(b"behind")
    with pytest.raises(Conflict, match="'assets/a' was changed"):
        found.files["assets/a"].read()
    (tmp_path / "assets" / "a").unlink()
    (tmp_path / "assets" / "a").symlink_to(tmp_path / "toolset.yaml")
    with pytest.raises(Invalid, match="link"):
        found.files["assets/a"].read()


def test_a_digest_tells_content_names_and_permissions_apart() -> None:
    variants = [
        bundle(),
        bundle(Forged("assets/a", b"x")),
        bundle(Forged("assets/b", b"x")),
        bundle(Forged("assets/a", b"y")),
        bundle(Forged("assets/a", b"x", mode=0o100755)),
        bundle(Forged("assets/a", b"x"), manifest=MANIFEST.replace(b"Demo", b"Other")),
    ]
    assert len({read_zip(variant).digest for variant in variants}) == len(variants)
    assert read_zip(bundle(manifest=b"# a comment\n" + MANIFEST)).digest == read_zip(bundle()).digest


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("tools/files.py", "python"),
        ("lib/util.py", "python"),
        ("artifacts/results.html", "artifact"),
        ("artifacts/page.py", "artifact"),
        ("assets/templates/default.json", "asset"),
        ("tools/data.json", "asset"),
        ("settings.toml", "config"),
        ("README.md", "asset"),
    ],
)
def test_a_file_is_of_the_kind_its_folder_or_its_name_says(path: str, kind: str) -> None:
    assert file_kind(path) == kind


def test_a_path_that_is_neither_folder_nor_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no folder or ZIP file"), open_bundle(tmp_path / "nowhere"):
        pass
    with pytest.raises(NotFound, match="there is no folder"):
        read_folder(tmp_path / "nowhere")


def test_the_limits_leave_room_to_pack_whatever_a_folder_may_hold() -> None:
    limits = BundleLimits()
    headers = limits.files * (30 + 46 + 2 * 512)
    assert limits.zip_bytes > limits.bytes + headers + limits.bytes // 1000
