"""The base class of frozen dataclasses. A start imports over a hundred of them and uses some twenty."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from threading import RLock
from typing import Any, ClassVar, dataclass_transform

# Processing a class reads the fields of its bases, which may process them.
_LOCK = RLock()


class _FieldsAtFirstUse:
    def __get__(self, instance: object, owner: type[Value]) -> dict[str, Field[Any]]:
        if owner is Value:  # the standard library looks for the fields of every base class
            raise AttributeError("__dataclass_fields__")
        _process(owner)
        return owner.__dataclass_fields__


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value:
    """A subclass is a `@dataclass(frozen=True)`, processed when it is first instantiated or asked for its fields:
    generating its methods takes as long as importing a small module."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = _FieldsAtFirstUse()  # type: ignore[assignment]

    def __init_subclass__(cls) -> None:
        if Value not in cls.__bases__:  # its `__init__` is that of its base class, not the one below
            _process(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        _process(type(self))
        type(self).__init__(self, *arguments, **named)


def _process(owner: type[Value]) -> None:
    with _LOCK:
        if "__dataclass_params__" not in vars(owner):
            dataclass(frozen=True)(owner)
