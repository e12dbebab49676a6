"""Extensions of your own, found by name."""

from __future__ import annotations

import importlib

from gateway.config import ExtensionSettings
from gateway.errors import Invalid
from gateway.extensions import Extension


def load_extension(custom: ExtensionSettings) -> Extension:
    """The extension `module:Class` names, made with its options."""
    module_name, _, class_name = custom.use.partition(":")
    try:
        extension = getattr(importlib.import_module(module_name), class_name)(**custom.options)
    except (ImportError, AttributeError, TypeError) as error:
        raise Invalid(f"extension {custom.use!r} cannot be loaded: {error}", code="INVALID_CONFIG") from error
    if not isinstance(extension, Extension):
        raise Invalid(f"extension {custom.use!r} is no gateway.extensions.Extension", code="INVALID_CONFIG")
    return extension
