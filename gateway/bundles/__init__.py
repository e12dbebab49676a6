"""A toolset as a thing one can hand over: what its `toolset.yaml` says, and the files around it."""

from gateway.bundles.archive import Bundle, BundleFile, BundleLimits, open_bundle, read_folder, read_zip, write_zip
from gateway.bundles.http_tool import HttpDefaults, HttpTool
from gateway.bundles.secret_references import mask_secrets
from gateway.bundles.spec import FILE_NAME, Server, ToolOverride, Toolset, dump, load
from gateway.bundles.tool_kinds import BuiltinTool, PythonTool, ShellTool, Step, StepsTool, ToolSpec

__all__ = [
    "FILE_NAME",
    "BuiltinTool",
    "Bundle",
    "BundleFile",
    "BundleLimits",
    "HttpDefaults",
    "HttpTool",
    "PythonTool",
    "Server",
    "ShellTool",
    "Step",
    "StepsTool",
    "ToolOverride",
    "ToolSpec",
    "Toolset",
    "dump",
    "load",
    "mask_secrets",
    "open_bundle",
    "read_folder",
    "read_zip",
    "write_zip",
]
