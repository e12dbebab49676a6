"""Files of the workspace, written and read as the gateway does it: JSON in, JSON out."""

import os

import pytest
from tools.files import READ_LIMIT, read_file, write_file

from covalt_toolset import context, invoke


@pytest.fixture(autouse=True)
def workspace(tmp_path):
    (tmp_path / "workspace").mkdir()
    with context(workspace=tmp_path / "workspace"):
        yield tmp_path / "workspace"


def read(path, **arguments):
    return invoke(read_file, {"path": path, **arguments})


def refusal(function, **arguments):
    with pytest.raises(Exception) as refused:
        invoke(function, arguments)
    return str(refused.value)


def test_what_is_written_is_read_back(workspace):
    text = "<p>größe</p>\r\nno newline at the end"
    written = {"written": "src/deep/a.html", "size": len(text.encode()), "created": True}
    assert invoke(write_file, {"path": "src/deep/a.html", "content": text}) == written
    assert (workspace / "src/deep/a.html").read_bytes() == text.encode()
    assert read("src/deep/a.html") == {
        "path": "src/deep/a.html",
        "content": text,
        "size": len(text.encode()),
        "first_line": 1,
        "next_line": None,
        "cut": False,
    }


def test_a_second_write_replaces_the_first(workspace):
    invoke(write_file, {"path": "a.txt", "content": "a long text"})
    assert invoke(write_file, {"path": "a.txt", "content": "b"}) == {"written": "a.txt", "size": 1, "created": False}
    assert read("a.txt")["content"] == "b"


def test_a_program_stays_executable_when_it_is_written_again(workspace):
    (workspace / "run.sh").write_text("#!/bin/sh\n")
    (workspace / "run.sh").chmod(0o755)
    invoke(write_file, {"path": "run.sh", "content": "#!/bin/sh\necho hi\n"})
    assert os.access(workspace / "run.sh", os.X_OK)


@pytest.mark.parametrize("function", [write_file, read_file])
@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", "link/secret", "link"])
def test_no_path_leads_out(function, path, workspace):
    (workspace.parent / "secret").write_text("s3cret")
    (workspace / "link").symlink_to(workspace.parent)
    more = {"content": "x"} if function is write_file else {}
    assert refusal(function, path=path, **more) == (
        f"{path!r} leads out of the workspace; give a path relative to it, such as 'src/app.py'"
    )
    assert (workspace.parent / "secret").read_text() == "s3cret"


def test_an_absolute_path_into_the_workspace_is_taken(workspace):
    assert invoke(write_file, {"path": str(workspace / "a.txt"), "content": "x"})["size"] == 1
    assert read(str(workspace / "a.txt"))["content"] == "x"


def test_a_path_that_is_none_is_refused(workspace):
    (workspace / "round").symlink_to("round")
    assert refusal(read_file, path="a\0b") == "'a\\x00b' is no path: embedded null byte"
    assert "round" in refusal(read_file, path="round")


def test_refusals_name_what_is_there_instead(workspace):
    (workspace / "src").mkdir()
    assert refusal(read_file, path="src") == "'src' is a folder; it holds nothing"
    (workspace / "src/app.py").write_text("")
    assert refusal(read_file, path="src") == "'src' is a folder; it holds app.py"
    assert refusal(read_file, path="src/ap.py") == "there is no file 'src/ap.py'; 'src' holds app.py"
    assert refusal(read_file, path="no/such/x") == "there is no file 'no/such/x'; the workspace holds src/"
    assert refusal(write_file, path="src/", content="") == (
        "'src/' is a folder; name a file in it, such as 'src/index.html'"
    )
    assert refusal(write_file, path="src/app.py/x", content="") == (
        "'src/app.py/x' has a file where a folder should be: src/app.py"
    )


def test_a_long_file_comes_in_parts_that_make_the_whole(workspace):
    text = "".join(f"line {number} {'x' * 90}\n" for number in range(5_000))
    (workspace / "long.txt").write_text(text)
    parts, line = [], 1
    while line is not None:
        part = read("long.txt", first_line=line)
        assert len(part["content"].encode()) <= READ_LIMIT
        parts.append(part["content"])
        line = part["next_line"]
    assert "".join(parts) == text
    assert len(parts) > 2


def test_lines_are_counted_from_one(workspace):
    (workspace / "a.txt").write_text("one\ntwo\nthree")
    assert (read("a.txt", first_line=2, lines=1)["content"], read("a.txt", first_line=2, lines=1)["next_line"]) == (
        "two\n",
        3,
    )
    assert (read("a.txt", first_line=3)["content"], read("a.txt", first_line=3)["next_line"]) == ("three", None)
    assert refusal(read_file, path="a.txt", first_line=5) == "'a.txt' has only 3 lines; 'first_line' is 5"


def test_a_line_too_long_for_an_answer_is_cut_between_characters(workspace):
    (workspace / "min.js").write_text("x" + "ü" * READ_LIMIT + "\nnext\n")
    part = read("min.js")
    assert (part["cut"], part["next_line"], set(part["content"])) == (True, 2, {"x", "ü"})
    assert READ_LIMIT - 2 < len(part["content"].encode()) <= READ_LIMIT
    assert read("min.js", first_line=2)["content"] == "next\n"


def test_an_empty_file_is_an_empty_text(workspace):
    (workspace / "empty").touch()
    assert (read("empty")["content"], read("empty")["next_line"]) == ("", None)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"\x89PNG\r\n\0\0", "it has NUL bytes in it"), (b"gr\xf6\xdfe", "the byte 0xf6 is no UTF-8")]
)
def test_what_is_no_text_is_refused(data, reason, workspace):
    (workspace / "image").write_bytes(data)
    assert refusal(read_file, path="image").startswith(
        f"'image' is no text file: {reason}; look at it with run_command"
    )
