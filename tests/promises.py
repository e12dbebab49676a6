"""Every promise of the product: its row, the sentence, and whether it is built.

A row is `BUILT` when tests marked with it hold all of it, `PARTLY` when they hold the part named,
and `LATER` when nothing is claimed yet.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["built", "partly", "later"]


class Promise(NamedTuple):
    sentence: str
    state: State = "later"
    so_far: str = ""


PROMISES: dict[str, Promise] = {
    # Toolsets, workspaces, renderers
    "T1": Promise(
        "The eight tables keep the columns and meaning they were designed with; migrations run by themselves at start.",
        "built",
    ),
    "T2": Promise(
        "A chat's workspace is versioned: any earlier message's files come back byte for byte; retries branch.",
        "built",
    ),
    "T3": Promise(
        "A bundle is imported whole or not at all, from ZIP, folder or URL, and exports without secrets.",
        "built",
    ),
    "T4": Promise(
        "Python tools: schema from type hints, a context, sync and async; failures recorded and snapshotted.",
        "built",
    ),
    "T5": Promise(
        "Renderers code, document, html and frame; a render plan after each call, errors included.",
        "built",
    ),
    "T6": Promise(
        "Toolsets declare MCP servers, connected on install after consent; no secret value is stored or exported.",
        "built",
    ),
    "T7": Promise(
        "Management and workspace API, over REST and as MCP tools of an admin toolset.",
        "built",
    ),
    "T8": Promise(
        "A web console, and the same viewers inside any MCP Apps host.",
        "built",
    ),
    "T9": Promise(
        "The app-builder toolset ships, works from Claude Desktop's settings, and starts and shows what it builds.",
        "built",
    ),
    # Bundles over REST, HTTP tools, search
    "B1": Promise("Bundles over REST: PUT, PATCH, soft DELETE, GET with paging.", "built"),
    "B2": Promise("Tools by slug and version over REST, invoked and searched there.", "built"),
    "B3": Promise("Ids are UUIDv7; slugs and versions are unique also across processes.", "built"),
    "B4": Promise("Builtins are immutable but for being enabled.", "built"),
    "B5": Promise(
        "Search ranks prefix, whole word, fuzzy, then recency; in each the most relevant first.",
        "built",
    ),
    "B6": Promise(
        "Invoking validates arguments and output and answers {ok, value} or {ok, error}, by the one executor.",
        "built",
    ),
    "B7": Promise("HTTP tools: a placeholder cannot change the host, nor a redirect reach a private address.", "built"),
    "B8": Promise("An OpenAPI document imports as a toolset.", "built"),
    "B9": Promise(
        "What disappears is disabled, and comes back as it was.",
        "built",
    ),
    "B10": Promise("Multi-step tools, declared in YAML, shown as one tool.", "built"),
    "B11": Promise("Limits on calls a minute, bytes in and out, and tools; the error names the limit.", "built"),
    # Specs, one executor, extensions
    "X1": Promise(
        "Specs are data, filtered by kind, category and tag, and exported in OpenAI's, MCP's and Anthropic's shapes.",
        "built",
    ),
    "X2": Promise(
        "One executor for every kind of tool: timeout, retry, concurrency, cancellation, progress.",
        "built",
    ),
    "X3": Promise(
        "Extensions stand around every call, by priority; a failing gate denies, a failing observer is passed by, "
        "and the call's record is never lost.",
        "built",
    ),
    "X4": Promise("Shell tools get arguments as data, never spliced into a command.", "built"),
    # Core tools and approval
    "C1": Promise("File tools on the chat's workspace, from which no path, link or race leads out.", "built"),
    "C2": Promise("run_code in a sandbox: nothing outside the workspace, no network, hard limits.", "built"),
    "C3": Promise("web_fetch and web_search, proof against requests to private addresses.", "built"),
    "C4": Promise("git, tests, formatting and packages as tools.", "built"),
    "C5": Promise(
        "A person decides on dangerous calls, in every protocol era, and may edit the arguments.",
        "built",
    ),
    "C6": Promise(
        "Results are {ok, value} or {ok: false, error: {code, message, details}}, on every surface.", "built"
    ),
    # Categories and permissions
    "P1": Promise(
        "Categories with a level and a switch, set by flags and settings, and changed while the gateway runs.",
        "built",
    ),
    "P2": Promise(
        "A permission level is enforced: a read-only category cannot run a tool that writes.",
        "built",
    ),
    "P3": Promise("Per-category rate limits, and a queryable record of every call.", "built"),
    "P4": Promise("The customer-support toolset as a worked example.", "built"),
    # The gateway itself
    "G1": Promise(
        "Upstreams over stdio, SSE and streamable HTTP, supervised; a dead one blocks nobody.",
        "built",
    ),
    "G2": Promise(
        "Faithful pass-through in every pairing of protocol eras.",
        "built",
    ),
    "G3": Promise("Serves stdio and streamable HTTP in both protocol eras from one process.", "built"),
    "G4": Promise(
        "Render plans and workspace files as resources.",
        "built",
    ),
    "G5": Promise("Every renderer is an MCP App.", "built"),
    "G6": Promise(
        "Large catalogs stay usable: search-first mode and per-client profiles.",
        "built",
    ),
    "G7": Promise("HTTP deployment with keys, roles, Host and Origin checks, health and metrics.", "built"),
    "G8": Promise("Grows past one machine on PostgreSQL and S3, losing nothing."),
    "G9": Promise("Upstream definitions are pinned; a changed one is held back until accepted.", "built"),
    # Beyond
    "H1": Promise("Installable where people look: package index, desktop bundle, container image, public registry."),
    "H2": Promise("stdio upstreams run inside the sandbox, with the paths and hosts they are given.", "built"),
    "H3": Promise("Tasks are relayed; long calls and waiting approvals are tasks."),
    "H4": Promise("Skills of toolsets and upstreams are served by the skills extension and as resources."),
    "H5": Promise(
        "The call log is tamper-evident: any edit, deletion, insertion or reordering of records is found, by the "
        "gateway and by third parties.",
        "built",
    ),
    "H6": Promise(
        "Starts over stdio in half the time of a minimal SDK server.",
        "partly",
        "in 0.46 to 0.64 of the time, by machine; the start needs no module of the SDK",
    ),
    "H7": Promise("Code mode: one program calls many tools, each through the executor under its own name.", "built"),
    "H8": Promise(
        "The token cost of lists is shown per tool and profile; output schemas and long descriptions can be left out.",
        "built",
    ),
    "H9": Promise("Upstreams and clients are told only of extensions that the gateway relays.", "built"),
}
