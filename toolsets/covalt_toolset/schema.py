"""JSON Schema (draft 2020-12) of Python types, without generated titles."""

from __future__ import annotations

import math
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema

Schema = dict[str, Any]


def schema_of(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> Schema:
    """Return the schema with its top level inlined; a recursive type also has it among its `$defs`."""
    schema = adapter.json_schema(schema_generator=_UntitledGenerator, mode=mode)
    for definition in schema.get("$defs", {}).values():
        if "enum" in definition:  # the title of an enum is added after the generator ran
            definition.pop("title", None)
    top = schema.pop("$ref", None)
    return schema if top is None else {**schema["$defs"][top.removeprefix("#/$defs/")], **schema}


class _UntitledGenerator(GenerateJsonSchema):
    """Omits titles that pydantic derives from names, and defaults that JSON cannot represent."""

    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012 - as the parent declares it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _remove_title(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _remove_title(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _remove_title(super().typed_dict_schema(schema), schema.get("cls"))

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        if isinstance(encoded, float) and not math.isfinite(encoded):
            raise PydanticSerializationError("JSON has no such number")
        return encoded


def _remove_title(schema: JsonSchemaValue, cls: type | None) -> JsonSchemaValue:
    if cls is not None and schema.get("title") == cls.__name__:
        return {key: value for key, value in schema.items() if key != "title"}
    return schema
