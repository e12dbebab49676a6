"""Every test has a workspace of its own, with a call standing in it."""

import pytest

from covalt_toolset import context


@pytest.fixture
def workspace(tmp_path):
    return tmp_path


@pytest.fixture(autouse=True)
def call(workspace):
    with context(workspace=workspace) as here:
        yield here


@pytest.fixture
def write(workspace):
    def write(name, text, encoding="utf-8"):
        (workspace / name).write_bytes(text.encode(encoding))
        return name

    return write
