"""What is read from a docstring."""

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from covalt_toolset import describe, docstrings, tool


def google(path: str, limit: int = 3, *, deep: bool = False) -> None:
    """Find files
    by their names.

    More words, which are for people.

    Args:
        path (str): Where to look:
            any folder of the workspace
        limit (int, optional): How many

        deep: Whether to go on below

    Returns:
        path: not a parameter
    """


def numpy(path: str, limit: int = 3, *, deep: bool = False) -> None:
    """Find files by their names.

    Parameters
    ----------
    path : str
        Where to look:
        any folder of the workspace
    limit : int, optional
        How many
    deep
        Whether to go on below

    Returns
    -------
    path : None
        not a parameter
    """


def sphinx(path: str, limit: int = 3, *, deep: bool = False) -> None:
    """Find files by their names.
    :param str path: Where to look:
        any folder of the workspace
    :param limit: How many
    :keyword deep: Whether to go on below
    :returns: nothing
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_three_styles_say_the_same(function: Any) -> None:
    description = describe(function)
    assert description.description == "Find files by their names."
    assert {name: each["description"] for name, each in description.input_schema["properties"].items()} == {
        "path": "Where to look: any folder of the workspace",
        "limit": "How many",
        "deep": "Whether to go on below",
    }


def test_a_docstring_that_starts_with_its_arguments_describes_nothing_else() -> None:
    @tool
    def analyze(filename: str) -> None:
        """
        Args:
            filename: File to analyze
        """

    description = describe(analyze)
    assert description.description == ""
    assert description.input_schema["properties"]["filename"]["description"] == "File to analyze"


def test_names_that_share_a_numpy_entry_share_its_words() -> None:
    text = """Add.

    Parameters
    ----------
    a, b : int
        A number
    """
    assert docstrings.parameters(text) == {"a": "A number", "b": "A number"}


def test_a_field_description_wins_over_the_docstring() -> None:
    @tool
    def read(path: Annotated[str, Field(description="from the field")]) -> None:
        """Read.

        Args:
            path: from the docstring
        """

    assert describe(read).input_schema["properties"]["path"]["description"] == "from the field"


def test_no_docstring_is_no_description() -> None:
    assert docstrings.summary(None) == ""
    assert docstrings.parameters(None) == {}


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    assert isinstance(docstrings.summary(text), str)
    assert all(docstrings.parameters(text).values())


words = st.text("abcdefgh ", min_size=1).map(str.strip).filter(bool).map(lambda text: " ".join(text.split()))


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), words, min_size=1))
def test_what_is_written_for_each_parameter_is_read_back(documented: dict[str, str]) -> None:
    google_style = "Do.\n\nArgs:\n" + "".join(f"    {name}: {text}\n" for name, text in documented.items())
    numpy_style = "Do.\n\nParameters\n----------\n" + "".join(
        f"{name}\n    {text}\n" for name, text in documented.items()
    )
    sphinx_style = "Do.\n\n" + "".join(f":param {name}: {text}\n" for name, text in documented.items())
    for docstring in (google_style, numpy_style, sphinx_style):
        assert docstrings.parameters(docstring) == documented
        assert docstrings.summary(docstring) == "Do."
