"""Field types of `toolset.yaml`: ids, versions, paths, texts and `${references}`, each with its validator."""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from gateway.bundles import paths
from gateway.document import Place

TEXT_LIMIT = 8 * 1024
ENTRIES_LIMIT = 100
RESERVED = frozenset(["builtin", "default", "gateway", "mcp", "toolgate", "toolset"]) | paths.DEVICES

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TOOL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ANY_TOOL = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_-]{0,63}:)?[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_LABEL = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_LABEL})?(?:\+{_LABEL})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
QUERY_NAME = re.compile(r"[^\s&=#?\x00-\x1f\x7f]{1,128}")
_CATEGORY = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_CLAUSE = r"(?:===?|!=|~=|[<>]=?)\s*[A-Za-z0-9.*+!_-]+"
_REQUIREMENT = re.compile(
    rf"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._, -]+\])?\s*(?:{_CLAUSE}(?:\s*,\s*{_CLAUSE})*)?"
)
REFERENCE = re.compile(r"\$\{(?P<whole>(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?:\.[A-Za-z0-9_-]+|\[[0-9]{1,6}\])*)\}")


class ManifestSection(BaseModel):
    """A mapping of the file: only known keys, in snake_case or camelCase; immutable."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        defer_build=True,  # of thirty sections a toolset uses a few, and most processes none
        loc_by_alias=False,
    )


def field_error(reason: str, *at: str | int) -> PydanticCustomError:
    """Return an error for a validator to raise, about the place `at` inside the validated value."""
    place: Place = at
    return PydanticCustomError("toolset", "{reason}", {"reason": reason, "at": place})


@contextmanager
def error_inside(*at: str | int) -> Iterator[None]:
    """Prefix the place of a `field_error` raised inside with `at`."""
    try:
        yield
    except PydanticCustomError as error:
        context = error.context or {}
        raise field_error(context["reason"], *at, *context["at"]) from None


def references(text: str) -> list[str]:
    """Return the names in `${name}` and the first names in `${name.path[0]}`; refused when a `${` is malformed."""
    names = [match["name"] for match in REFERENCE.finditer(text)]
    if text.count("${") != len(names):
        raise field_error("'${' begins a reference; write ${NAME}, of letters, digits and _")
    return names


def iterate_texts(value: Any) -> Iterator[str]:
    """Yield every string in a plain value, at any depth, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from iterate_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iterate_texts(item)


def environment_names(text: str) -> list[str]:
    """Return the environment variables in a value; refused when a reference is to something else."""
    names = references(text)
    if any(not _VARIABLE.fullmatch(match["whole"]) for match in REFERENCE.finditer(text)):
        raise field_error("here a ${NAME} is a variable of the environment: letters, digits and _")
    return names


def check_path(path: str) -> None:
    if reason := paths.path_problem(path.removeprefix("./")):
        raise field_error(f"{paths.quote_path(path)} {reason}")


def _check_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise field_error(
            f"{text[:80]!r} is no id: lower-case letters, digits, - and _, at most 64, first a letter or digit"
        )
    if text in RESERVED:
        raise field_error(f"{text!r} is reserved; choose another id")
    return text


def _check_tool_id(text: str) -> str:
    if not _TOOL_ID.fullmatch(text):
        raise field_error(f"{text[:80]!r} is no tool id: letters, digits, _ and -, at most 64, first a letter or digit")
    return text


def check_slug(text: str, extra: str = "-") -> str:
    """Return a slug: letters and digits of any script and dashes, at most 64; refused when it is none."""
    if not 0 < len(text) <= 64 or not all(
        character in extra or unicodedata.category(character)[0] == "L" or unicodedata.category(character) == "Nd"
        for character in text
    ):
        allowed = "letters, digits, dashes and dots" if "." in extra else "letters, digits and dashes"
        raise field_error(f"{text[:80]!r} must be 1 to 64 {allowed}")
    return text


def check_label(text: str) -> str:
    """Return a version label: as a slug, with dots."""
    return check_slug(text, "-.")


def _check_any_tool(text: str) -> str:
    if not _ANY_TOOL.fullmatch(text):
        raise field_error(f"{text[:80]!r} names no tool; write 'tool', 'toolset:tool' or 'server:tool'")
    return text


def _check_version(text: str) -> str:
    if len(text) > 64 or not _VERSION.fullmatch(text):
        raise field_error(f"{text[:80]!r} is no semantic version such as '1.0.0'")
    return text


def _check_variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise field_error(f"{text[:80]!r} is no name of an environment variable: letters, digits and _")
    return text


def check_header(text: str) -> str:
    if not HEADER_NAME.fullmatch(text):
        raise field_error(f"{text[:80]!r} is no name of an HTTP header")
    return text


def _check_query(text: str) -> str:
    if not QUERY_NAME.fullmatch(text) or "${" in text:
        raise field_error(f"{text[:80]!r} is no name of a query parameter")
    return text


def _check_category(text: str) -> str:
    if not _CATEGORY.fullmatch(text):
        raise field_error(f"{text[:80]!r} is no category: lower-case letters, digits, - and _")
    return text


def _check_requirement(text: str) -> str:
    if len(text) > 200 or not _REQUIREMENT.fullmatch(text):
        raise field_error(f"{text[:80]!r} is no requirement such as 'httpx>=0.27'; URLs and options are not allowed")
    return text


def _check_line(text: str) -> str:
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text):
        raise field_error("this must be one line of text without control characters")
    return text


def _check_prose(text: str) -> str:
    if len(text.encode("utf-8", "replace")) > TEXT_LIMIT:
        raise field_error(f"this text is longer than {TEXT_LIMIT} bytes")
    _check_line(text.replace("\n", " ").replace("\t", " "))
    return text


def _check_relative(text: str) -> str:
    check_path(text)
    return text


def _check_plain(text: str) -> str:
    if "${" in text:
        raise field_error("a ${reference} is allowed only in env, headers, url and args")
    return text


def _check_variables(text: str) -> str:
    environment_names(text)
    return text


def _check_template(text: str) -> str:
    references(text)
    return text


def _check_templates(value: Any) -> Any:
    for text in iterate_texts(value):
        references(text)
    return value


def compile_expression(text: str) -> Any:
    """Compile a JMESPath expression. `$` and `$.` at its start stand for the whole value, as in JSONPath."""
    # Imported at the first use: it takes a fiftieth of a second, and most toolsets have no expression.
    jmespath = importlib.import_module("jmespath")
    return jmespath.compile(text.removeprefix("$").removeprefix(".") or "@")


def _check_expression(text: str) -> str:
    try:
        compile_expression(text)
    except ValueError as error:  # as all errors of jmespath are
        reason = str(error).splitlines()[0].rstrip(":")
        raise field_error(f"{text!r} is no JMESPath expression such as 'data.items[0].name': {reason}") from None
    return text


Id = Annotated[str, AfterValidator(_check_id)]
ToolId = Annotated[str, AfterValidator(_check_tool_id)]
Slug = Annotated[str, AfterValidator(check_slug)]
VersionLabel = Annotated[str, AfterValidator(check_label)]
AnyTool = Annotated[str, AfterValidator(_check_any_tool)]
SemanticVersion = Annotated[str, AfterValidator(_check_version)]
Variable = Annotated[str, AfterValidator(_check_variable)]
Header = Annotated[str, AfterValidator(check_header)]
QueryName = Annotated[str, AfterValidator(_check_query)]
Category = Annotated[str, AfterValidator(_check_category)]
Requirement = Annotated[str, AfterValidator(_check_requirement)]
Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_line)]
Prose = Annotated[str, AfterValidator(_check_prose)]
Directory = Annotated[str, AfterValidator(_check_relative), AfterValidator(_check_plain)]
Argument = Annotated[str, Field(max_length=TEXT_LIMIT)]
Value = Annotated[Argument, AfterValidator(_check_line)]
PlainValue = Annotated[Value, AfterValidator(_check_plain)]
# A value in which `${NAME}` is an environment variable.
Setting = Annotated[Value, AfterValidator(_check_variables)]
# A value in which `${name}` is an argument of the call or a declared secret.
Template = Annotated[Value, AfterValidator(_check_template)]
Content = Annotated[Argument, AfterValidator(_check_template)]
Body = Annotated[Any, AfterValidator(_check_templates)]
Expression = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_check_expression)]
Seconds = Annotated[float, Field(gt=0, le=3600)]

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
Table = Annotated[dict[_Key, _Item], Field(max_length=ENTRIES_LIMIT)]
