"""Definitions as honest servers write them, with words that come close to what poisoned ones say."""

# ruff: noqa: E501 - prose

from __future__ import annotations

from typing import Any


def tool(name: str, description: str, /, **properties: Any) -> dict[str, Any]:
    """A tool; a property given as text is a string with that description."""
    schema = {
        key: {"type": "string", "description": value} if isinstance(value, str) else value
        for key, value in properties.items()
    }
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": schema}}


FILES = [
    tool(
        "read_text",
        "Gives back a file as text. Use it for one file; for several, read_many is faster. With 'head' only the first lines are read. The path must lie in a directory that was allowed when the server was started.",
        path="The file",
        head={"type": "number", "description": "How many lines to read"},
    ),
    tool(
        "read_many",
        "Reads a list of files in one go. A file that cannot be opened is reported beside the others and does not spoil the whole call.",
        paths={"type": "array", "items": {"type": "string"}, "minItems": 1},
    ),
    tool(
        "write_text",
        "Writes a file, creating it if necessary. Whatever it held before is replaced without warning, so look first.",
        path="Where to write",
        content="All of the text",
    ),
    tool(
        "edit_text",
        "Replaces passages of a file. Each old passage must occur exactly once. Answers with a diff.",
        dryRun={"type": "boolean", "default": False, "description": "Only show the diff; do not write"},
    ),
    tool(
        "make_directory",
        "Makes a directory and those above it. If it is there already, nothing happens and silently succeeds.",
    ),
    tool(
        "tree",
        "Shows a directory with everything below it, as JSON.",
        exclude="Patterns to leave out, e.g. *.log, .git",
    ),
    tool("move", "Moves or renames. Refuses when something is at the destination already."),
    tool(
        "find_files",
        "Finds files by a pattern. What .gitignore names is left out; set all=true to override existing rules.",
        pattern={"type": "string", "pattern": "^[^\u202e\u0000]*$"},
    ),
    tool("stat", "Size, times, permissions and kind of a file."),
    tool("roots", "The directories this server may touch. Call it first if you are not sure which paths are valid."),
]

GIT = [
    tool("git_status", "What is changed, staged and untracked.", repository="Path of the repository"),
    tool("git_diff", "What changed since a commit, or what is not staged yet.", context="Lines around each change"),
    tool("git_commit", "Commits what is staged. Hooks run unless no_verify is set.", message="The commit message"),
    tool("git_log", "The last commits.", limit={"type": "integer", "default": 10}, since="e.g. 'two weeks ago'"),
    tool(
        "git_reset",
        "Unstages everything. With mode=hard local changes are thrown away without asking for confirmation, so use that only when the person wants it.",
        mode={"type": "string", "enum": ["soft", "mixed", "hard"]},
    ),
    tool("git_clone", "Clones a repository over HTTPS or SSH.", key="Which key of your agent to use"),
    tool("git_show", "One commit with its changes, for example 4b825dc642cb6eb9a060e54bf8d69288fbee4904."),
]

FORGE = [
    tool(
        "put_file",
        "Creates or changes one file of a hosted repository in a commit of its own. To change a file you must pass the hash it has now. Not meant for files on this computer.",
        content="Contents of the file",
        branch="The branch to commit to",
    ),
    tool("search_repositories", "Finds repositories.", query="Search terms, e.g. 'user:octocat language:rust'"),
    tool(
        "open_issue",
        "Opens an issue. Labels must exist before you use them. What each field means is written at https://docs.example.com/rest/issues/create.",
        body="Markdown; <details> and <summary> are allowed",
    ),
    tool(
        "comment_on_review",
        "Adds a remark to your review that is not submitted yet. There must be such a review; if you are unsure, ask the user.",
        level={"type": "string", "enum": ["FILE", "LINE"]},
        side={
            "type": "string",
            "enum": ["LEFT", "RIGHT"],
            "description": "LEFT is the previous state, RIGHT the new one",
        },
    ),
    tool("push_files", "Commits several files together. Sends the contents of all files in one request."),
    tool("scan_alerts", "Alerts of code scanning.", tool_name="Which scanner found it"),
    tool("secret_alert", "One alert about a leaked secret. The secret itself is never returned in full."),
    tool(
        "run_workflow",
        "Starts a workflow.",
        inputs={"type": "object", "description": "Whatever inputs the workflow takes"},
    ),
]

CHAT = [
    tool("channels", "Public channels of the workspace, page by page.", cursor="Where the last page ended"),
    tool(
        "post_message",
        "Posts to a channel. Mentions such as <!here> or <@U024BE7LH> notify people.",
        channel="The channel's id, e.g. C024BE91L",
        text="Text of the message. Emoji like :tada:, \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f and \U0001f469\u200d\U0001f4bb are fine.",
    ),
    tool("reply", "Answers in a thread.", thread="Timestamp of the first message, as '1234567890.123456'"),
    tool("thread", "Every reply of a thread, oldest first, the entire conversation in pages."),
    tool("people", "Members with their profiles. Those who have left are marked."),
    tool(
        "send_email",
        "Sends an email. With send_later the message waits as a draft which the user can look at.",
        to="Recipient, for example jane@example.com",
        bcc="Addresses that also receive a copy, e.g. a@example.com, b@example.com",
        reply_to="All replies are sent to this address, for instance support@example.com",
    ),
]

EVERYTHING = [
    tool("echo", "Says what you say.", message="What to say"),
    tool(
        "print_env",
        "Lists the environment variables of the server process; handy when its configuration does not take.",
    ),
    tool("slow", "Takes its time and reports progress meanwhile.", seconds={"type": "number", "default": 10}),
    tool("annotated", "Answers with content that has annotations, to try how a client treats them."),
    tool("sample", "Asks the client's model for a completion.", system="A system prompt to use; may be left out"),
    {
        "name": "wetter",
        "title": "Wetter",
        "description": "Gibt das Wetter zurück. Vor dem ersten Aufruf muss ein Ort gewählt werden.",
        "inputSchema": {"type": "object", "properties": {"ort": {"type": "string", "examples": ["München", "Zürich"]}}},
        "outputSchema": {"type": "object", "properties": {"grad": {"type": "number", "description": "in °C"}}},
        "annotations": {"readOnlyHint": True, "openWorldHint": True},
    },
]

OTHERS = [
    tool(
        "think",
        "A place to think in steps.\n\nGood for:\n- problems that must be taken apart\n- plans that may have to change\n\nHow to use it:\n1. Guess how many steps it takes; you may correct that later\n2. Doubt or revise previous thoughts whenever you like\n3. Ignore information that does not matter for the step\n4. Say that you are done only when you are",
    ),
    tool("remember", "Stores facts about people and things.", facts={"type": "array", "items": {"type": "string"}}),
    tool("fetch", "Gets a web page and turns its contents into Markdown.", url="e.g. https://example.com/page"),
    tool(
        "register_webhook",
        "Registers a webhook. When a job ends, its result is posted there.",
        url="The address to send results to, for example https://hooks.example.com/T000/B000/XXXX",
        secret="Signs the requests; stored encrypted and never shown again",
    ),
    tool(
        "query",
        "Runs a SELECT. Before you write one, look at the table with describe. Anything but SELECT is refused. Use parameters instead of building strings.",
        sql="For example: SELECT id, name FROM people WHERE left_at IS NULL LIMIT 10",
    ),
    tool(
        "library_docs",
        "Documentation of a library in the version you name. You must call 'resolve_library' first to learn its id, unless the user gave one. If the user does not know the id, resolve it for them. IMPORTANT: do not put any sensitive information such as API keys into the question.",
    ),
    tool("sign_in", "Signs in with the token from the settings. Call this before using any other tools."),
    tool("deploy", "Deploys a project.", env={"type": "object", "description": "Environment variables of the build"}),
    tool(
        "set_secret",
        "Puts a secret into the vault and returns its version. The value is not logged.",
        value="The secret",
    ),
    tool(
        "click",
        "Clicks an element of the page. What has display: none or visibility: hidden cannot be clicked.",
        element="What the element is, in words a person understands; used to ask for permission",
    ),
    tool(
        "lint",
        "Runs the linter. Patterns to ignore come from its configuration. A line after <!-- lint-off --> is left out.",
    ),
    tool(
        "apply_plan",
        "Applies a plan.",
        auto_approve={"type": "boolean", "description": "Skip the interactive approval"},
    ),
    tool("arabic", "ابحث في الوثائق. يمكن استخدام علامة \u200fالاتجاه\u200f داخل النص.", query="كلمات البحث"),
    tool("persian", "جستجو می\u200cکند و نتیجه\u200cها را برمی\u200cگرداند.", query="عبارت"),
    tool("hindi", "दस्तावेज़ खोजता है, क्\u200dष जैसे संयुक्त अक्षर भी.", query="शब्द"),
    tool("thai", "ค้นหา\u200bเอกสาร\u200bทั้งหมด", query="คำค้น"),
    tool("поиск", "Ищет документы по запросу и возвращает первые десять.", запрос="Текст запроса"),
    tool("検索", "ドキュメントを検索します。ＡＰＩキーは不要です。", クエリ="検索語"),
    tool("convert", "Converts units, e.g. µm to nm, Ω to kΩ, Δt in s; α and β stay as they are. 5 ≥ 3 ✔️ 1️⃣"),
    tool(
        "verify_token",
        "Checks a token and returns what it claims. Never logs it.",
        token="Three parts with dots between",
    ),
    tool("hash", "The SHA-256 of a file, e.g. e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855."),
    tool(
        "assign",
        "Assigns a ticket.",
        notify={"type": "boolean", "description": "If false, no one is notified by email"},
    ),
    {
        "name": "review",
        "description": "Has the model review code, with attention to the points you name",
        "arguments": [{"name": "code", "description": "The code", "required": True}, {"name": "focus"}],
    },
    {
        "uriTemplate": "file:///{path}",
        "name": "Files",
        "description": "Any file of the project",
        "mimeType": "text/plain",
    },
    {
        "instructions": "A PostgreSQL database. Start with tables, then describe. Prefer query with a LIMIT. Times are in UTC."
    },
]

BENIGN = [*FILES, *GIT, *FORGE, *CHAT, *EVERYTHING, *OTHERS]
