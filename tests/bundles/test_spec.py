"""What a `toolset.yaml` may say, and how a mistake in it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.bundles import HttpTool, PythonTool, Server, ShellTool, StepsTool, ToolOverride, Toolset, dump, load
from gateway.bundles.http_tool import ApiKeyAuth
from gateway.errors import Invalid
from gateway.tools import Permission

HEAD = 'id: demo\nname: Demo\nversion: "1.0.0"\n'
MANIFESTS = Path(__file__).parent / "manifests"


def test_the_example_of_the_format_loads_unchanged() -> None:
    toolset = load((MANIFESTS / "my-toolset.yaml").read_bytes())
    assert (toolset.manifest_version, toolset.id, toolset.version) == ("1", "my-toolset", "1.0.0")
    assert [tool.id for tool in toolset.tools] == ["analyze_data", "transform_file"]
    assert toolset.mcp_servers == (
        Server(id="my-mcp-server", command="npx", args=("-y", "my-mcp-package"), env={"API_KEY": "${MY_API_KEY}"}),
    )
    assert toolset.variables() == {"MY_API_KEY"}
    assert toolset.overrides() == (
        ToolOverride(
            tool_id="my-toolset:analyze_data",
            renderer="html",
            renderer_config={"artifact": "artifacts/results.html", "data": "$return"},
        ),
        ToolOverride(tool_id="my-mcp-server:search", name_override="Web Search", requires_confirmation=False),
        ToolOverride(
            tool_id="my-toolset:transform_file",
            renderer="code",
            renderer_config={"file": "$args.output", "language": "auto", "editable": True},
        ),
    )


def test_the_app_builder_of_the_format_loads_unchanged() -> None:
    toolset = load((MANIFESTS / "app-builder.yaml").read_bytes())
    write_file, read_file, run_command = toolset.tools
    assert isinstance(write_file, PythonTool)
    assert write_file.entrypoint == "tools.files:write_file"
    assert list((write_file.input_schema or {})["properties"]) == ["path", "content"]
    assert (read_file.requires_confirmation, run_command.requires_confirmation) == (None, True)
    assert [override.renderer for override in toolset.overrides()] == ["code"] * 3


EVERYTHING = """
manifest_version: 1
id: demo
name: Demo
version: 1.2.3-rc.1+build.5
category: support
permission: read-only
secrets: [API_TOKEN, HOST]
dependencies: ["httpx[http2]>=0.27,<1", pydantic]
tools:
- {id: plain, entrypoint: "files:plain"}
- id: grep
  type: shell
  command: [grep, -rn, --, "${pattern}", "./${folder}"]
  env: {LANG: "${API_TOKEN}"}
  successCodes: [0, 1]
- id: getUser
  type: http
  urlTemplate: https://${HOST}/users/${id}?full=true
  method: post
  query: {page: "${page}"}
  headers: {Accept: application/json}
  body: {name: "${name.first}", tags: ["${tags[0]}", 3]}
  auth: {type: apiKey, name: X-Key, value: "${API_TOKEN}", in: query}
  response: {successCodes: [200, 404], extract: "data.items[0].name", output: json}
  input_schema: {type: object, properties: {id: {}, page: {}, name: {}, tags: {}}}
- id: both
  type: steps
  steps:
  - {tool: getUser, args: {id: "$args.id"}, save-as: user}
  - {tool: "other:thing", args: {name: "$steps.user.name"}}
  result: {user: "$steps.user"}
toolOverrides:
- {toolId: "demo:plain", nameOverride: Plain, enabled: false}
mcpServers:
- {id: web, url: "https://${HOST}/mcp", headers: {Authorization: "Bearer ${API_TOKEN}"}, type: sse}
"""


def test_every_kind_of_tool_is_taken_in_both_spellings() -> None:
    toolset = load(EVERYTHING)
    plain, grep, get_user, both = toolset.tools
    assert isinstance(plain, PythonTool)
    assert isinstance(grep, ShellTool)
    assert isinstance(get_user, HttpTool)
    assert isinstance(both, StepsTool)
    assert toolset.permission is Permission.READ_ONLY
    assert (get_user.method, isinstance(get_user.auth, ApiKeyAuth)) == ("POST", True)
    assert both.steps[0].save_as == "user"
    assert load(dump(toolset)) == toolset


def complaint(text: str) -> str:
    with pytest.raises(Invalid) as refused:
        load(text)
    assert refused.value.code == "INVALID_TOOLSET"
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id: x", "toolset.yaml: 'name': this key is missing"),
        ("- a", "toolset.yaml: the file must hold keys and values"),
        ("", "toolset.yaml: the file must hold keys and values"),
        (HEAD + "descripton: x", "toolset.yaml line 4: 'descripton': unknown key; did you mean 'description'?"),
        (HEAD + "manifest_version: '2'", "line 4: 'manifest_version': must be '1'"),
        ("id: ../../x\nname: x\nversion: '1.0.0'", "line 1: 'id': '../../x' is no id"),
        ("id: Demo\nname: x\nversion: '1.0.0'", "line 1: 'id': 'Demo' is no id"),
        ("id: a~b\nname: x\nversion: '1.0.0'", "line 1: 'id': 'a~b' is no id"),
        ("id: builtin\nname: x\nversion: '1.0.0'", "line 1: 'id': 'builtin' is reserved"),
        ("id: com1\nname: x\nversion: '1.0.0'", "line 1: 'id': 'com1' is reserved"),
        ("id: x\nname: x\nversion: 1.0", "line 3: 'version': must be text"),
        ("id: x\nname: x\nversion: '1.0'", "line 3: 'version': '1.0' is no semantic version"),
        ("id: x\nname: x\nversion: 01.0.0", "line 3: 'version': '01.0.0' is no semantic version"),
        ('id: x\nname: "a\\nb"\nversion: "1.0.0"', "line 2: 'name': this must be one line"),
        (HEAD + f"description: {'x' * 8193}", "line 4: 'description': this text is longer than 8192 bytes"),
        (HEAD + 'description: "a\\eb"', "line 4: 'description': this must be one line of text without control"),
        (HEAD + "permission: everything", "line 4: 'permission': must be 'read-only'"),
        (HEAD + "dependencies: ['--index-url=http://evil']", "line 4: 'dependencies.0': '--index-url"),
        (HEAD + "dependencies: ['x @ http://evil/x.whl']", "line 4: 'dependencies.0'"),
        (HEAD + "secrets: [A, 'B C']", "line 4: 'secrets.1': 'B C' is no name of an environment variable"),
        (HEAD + "secrets: [A, A]", "line 4: 'secrets.1': 'A' occurs twice"),
    ],
)
def test_a_mistake_at_the_top_is_named_with_line_key_and_fix(text: str, expected: str) -> None:
    assert expected in complaint(text)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("{id: a}", "'tools.0.entrypoint': this key is missing"),
        ("{id: a/b, entrypoint: 'a:b'}", "'tools.0.id': 'a/b' is no tool id"),
        ("{id: a, entrypoint: 'a.b'}", "'tools.0.entrypoint': 'a.b' is not of the form"),
        ("{id: a, entrypoint: '../a:b'}", "'tools.0.entrypoint': '../a:b' is not of the form"),
        ("{id: a, entrypoint: 'a:b;c'}", "'tools.0.entrypoint'"),
        ("{id: a, type: go}", "'tools.0.type': unknown tool type; use python, shell, builtin, http or steps"),
        ("{id: a, type: [x]}", "'tools.0.type': unknown tool type"),
        ("7", "'tools.0.type': unknown tool type"),
        ("{id: a, entrypoint: 'a:b', rendrer: x}", "'tools.0.rendrer': unknown key; did you mean 'renderer'?"),
        ("{id: a, entrypoint: 'a:b', renderer: {type: htm}}", "'tools.0.renderer.type': must be 'code'"),
        ("{id: a, entrypoint: 'a:b', renderer: {file: x}}", "'tools.0.renderer.type': this key is missing"),
        (
            "{id: a, entrypoint: 'a:b', renderer: {type: html, artifact: ../x.html}}",
            "'tools.0.renderer.artifact': '../x.html' has '..' in it",
        ),
        (
            "{id: a, entrypoint: 'a:b', renderer: {type: html, artifact: /etc/passwd}}",
            "'/etc/passwd' is an absolute path",
        ),
        ("{id: a, entrypoint: 'a:b', requires_confirmation: yes}", "'tools.0.requires_confirmation': must be"),
        ("{id: a, entrypoint: 'a:b', input_schema: {type: string}}", "'tools.0.input_schema.type': the arguments"),
        ("{id: a, entrypoint: 'a:b', input_schema: {type: object, required: 7}}", "schema is no JSON Schema"),
        (
            "{id: a, entrypoint: 'a:b', input_schema: {type: object, $ref: 'http://evil/x'}}",
            "'tools.0.input_schema': schema is no JSON Schema",
        ),
        ("{id: a, type: shell, command: 'sort {path} | uniq'}", "'tools.0.command': '|' needs a shell, and none is"),
        ("{id: a, type: shell, command: 'rm *.txt'}", "'*' needs a shell"),
        ("{id: a, type: shell, command: 'echo $HOME'}", "'$H' needs a shell"),
        ("{id: a, type: shell, command: 'echo \"$(id)\"'}", "'$(' needs a shell"),
        ("{id: a, type: shell, command: 'rm \"{path}'}", "cannot be split into words: no closing quotation"),
        ("{id: a, type: shell, command: 'sh -c \"cat {path}\"'}", "a reference in code that 'sh' runs"),
        ("{id: a, type: shell, command: [ls, '${path}'], dash_safe: [pth]}", "no ${pth} in 'command'; did you mean"),
        ("{id: a, type: shell, command: []}", "'tools.0.command'"),
        ("{id: a, type: http, url: 'https://h/x'}", "'tools.0.url': unknown key; did you mean 'url_template'?"),
        ("{id: a, type: shell, comand: [ls]}", "'tools.0.comand': unknown key; did you mean 'command'?"),
        ("{id: a, type: shell, command: ['${program}', x]}", "'tools.0.command.0': the program is fixed"),
        ("{id: a, type: shell, command: [sh, -c, 'cat ${path}']}", "'tools.0.command.2': a reference in code"),
        ("{id: a, type: shell, command: [/bin/bash, -euxc, '${x}']}", "a reference in code"),
        ("{id: a, type: shell, command: [env, python3.11, -c, 'print(${x})']}", "a reference in code"),
        ("{id: a, type: shell, command: [node, '--eval=${x}']}", "a reference in code"),
        ("{id: a, type: shell, command: [perl, '-e${x}']}", "a reference in code"),
        ("{id: a, type: shell, command: [ssh, host, '${x}']}", "a reference in code"),
        ("{id: a, type: shell, command: [ls, '${x']}", "'${' begins a reference"),
        ("{id: a, type: shell, command: [ls, '${TOKEN}']}", "${TOKEN} is not among the toolset's 'secrets'"),
        (
            "{id: a, type: shell, command: [ls, '${KEY}']}",
            "'tools.0.command': ${KEY} is a secret, and others",
        ),
        ("{id: a, type: shell, command: [ls], cwd: ../x}", "'tools.0.cwd': '../x' has '..' in it"),
        ("{id: a, type: shell, command: [ls], env: {'A B': x}}", "is no name of an environment variable"),
        (
            "{id: a, type: shell, command: [ls, '${pth}'], input_schema: {type: object, properties: {path: {}}}}",
            "'tools.0.command': no argument or secret provides ${pth}; did you mean 'path'?",
        ),
        (
            "{id: a, type: shell, command: [ls], input_schema: {type: object, properties: {KEY: {}}}}",
            "the argument 'KEY' has the name of a secret",
        ),
        ("{id: a, type: http, urlTemplate: 'ftp://x/'}", "'tools.0.url_template': 'ftp://x/' must begin with http://"),
        (
            "{id: a, type: http, urlTemplate: 'http://${host}/'}",
            "'tools.0.url_template': ${host} would choose",
        ),
        ("{id: a, type: http, urlTemplate: 'http://u:p@host/'}", "a user or password in a URL is not allowed"),
        ("{id: a, type: http, urlTemplate: 'http://host\\@evil/'}", "'tools.0.url_template'"),
        ("{id: a, type: http, urlTemplate: 'http://host/#x'}", "a fragment (#) is never sent"),
        ("{id: a, type: http, urlTemplate: 'http://h/', method: BREW}", "'tools.0.method': must be 'GET'"),
        ("{id: a, type: http, urlTemplate: 'http://h/', headers: {'A B': x}}", "is no name of an HTTP header"),
        ('{id: a, type: http, urlTemplate: "http://h/", headers: {A: "x\\r\\nB: y"}}', "'tools.0.headers.A'"),
        ("{id: a, type: http, urlTemplate: 'http://h/', headers: {A: x, a: y}}", "a header occurs twice"),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', auth: {type: magic}}",
            "'tools.0.auth.type': unknown auth type",
        ),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', auth: {type: bearer, tokn: x, token: y}}",
            "'tools.0.auth.tokn': unknown key; did you mean 'token'?",
        ),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', auth: {type: bearer, token: '${mine}'}}",
            "'tools.0.auth': ${mine} is not among the toolset's 'secrets'",
        ),
        ("{id: a, type: http, urlTemplate: 'http://h/', response: {extract: 'items['}}", "is no JMESPath expression"),
        ("{id: a, type: http, urlTemplate: /x}", "'tools.0.url_template': this path needs the toolset's 'http:"),
        ("{id: a, type: http, urlTemplate: 'http://h/a/%2e%2E/b'}", "'.' and '..' cannot be segments"),
        ("{id: a, type: http, urlTemplate: 'http://h/', auth: main}", "'main' is not among the toolset's 'http.auth'"),
        ("{id: a, type: http, urlTemplate: 'http://h/', body: 1, form: {}}", "a request has one body; 'body' is there"),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', path: {x: {style: label}}}",
            "'tools.0.path.x': no ${x} in the path",
        ),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', auth: {type: hmac, secret: x, canonical: '{bdy}'}}",
            "there is no {bdy} to sign; did you mean 'body'?",
        ),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', pagination: {type: cursor, parameter: c}}",
            "name the place of the next cursor",
        ),
        (
            "{id: a, type: http, urlTemplate: 'http://h/', method: POST, retry: {attempts: 2}}",
            "'tools.0.retry': a second call may do it twice",
        ),
        ("{id: a, type: steps, steps: []}", "'tools.0.steps'"),
        ("{id: a, type: steps, steps: [{args: {}}]}", "a step has either a 'tool' to call or 'parallel' steps"),
        ("{id: a, type: steps, steps: [{tool: b, when: 'steps.c'}]}", "no earlier step saves 'c'"),
        (
            "{id: a, type: steps, steps: [{parallel: [{tool: b, save_as: c}, {tool: b, args: {x: $steps.c}}]}]}",
            "no earlier step saves 'c'",
        ),
        ("{id: a, type: steps, steps: [{parallel: [{tool: a}]}]}", "its steps form a cycle: demo:a → demo:a"),
        ("{id: a, type: steps, steps: [{tool: 'b c'}]}", "'tools.0.steps.0.tool': 'b c' names no tool"),
        ("{id: a, type: steps, steps: [{tool: b, args: {x: $steps.c}}]}", "no earlier step saves 'c'"),
        ("{id: a, type: steps, steps: [{tool: a}]}", "its steps form a cycle: demo:a → demo:a"),
        ("{id: a, type: steps, steps: [{tool: 'demo:a'}]}", "its steps form a cycle"),
    ],
)
def test_a_mistake_in_a_tool_is_named_with_line_key_and_fix(tool: str, expected: str) -> None:
    message = complaint(f"{HEAD}secrets: [KEY]\ntools:\n- {tool}")
    assert expected in message
    assert message.startswith(("toolset.yaml line 6: 'tools", "toolset.yaml line 5: 'tools"))


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("{id: s}", "either a 'command' to start or a 'url' to reach"),
        ("{id: s, command: x, url: 'http://h/'}", "either a 'command' to start or a 'url' to reach"),
        ("{id: nul, command: x}", "'nul' is reserved"),
        ("{id: a~b, command: x}", "'a~b' is no id"),
        ("{id: s, command: '${SHELL}'}", "'mcp_servers.0.command': a ${reference} is allowed only in env"),
        ("{id: s, command: x, cwd: '${HOME}'}", "'mcp_servers.0.cwd': a ${reference} is allowed only in env"),
        ("{id: s, command: x, cwd: /}", "'/' is an absolute path"),
        ("{id: s, command: x, env: {A: '${a.b}'}}", "'mcp_servers.0.env.A': here a ${NAME} is a variable"),
        ("{id: s, command: x, env: {A: '${'}}", "'${' begins a reference"),
        ("{id: s, command: x, headers: {A: b}}", "'mcp_servers.0.headers': this belongs to a server with a 'url'"),
        ("{id: s, url: 'http://h/', args: [x]}", "'mcp_servers.0.args': this belongs to a server with a 'command'"),
        (
            "{id: s, url: 'http://h/', sandbox: false}",
            "'mcp_servers.0.sandbox': this belongs to a server with",
        ),
        ("{id: s, command: x, sandbox: yes please}", "'mcp_servers.0.sandbox': must be keys and values"),
        (
            "{id: s, command: x, sandbox: {path: []}}",
            "0.sandbox.path': unknown key; did you mean 'paths'?",
        ),
        ("{id: s, command: x, sandbox: {paths: ['../x']}}", "'../x' is no path inside the toolset to read"),
        ("{id: s, command: x, sandbox: {paths: ['x:rw']}}", "'x:rw' is no path inside the toolset to read"),
        (
            "{id: s, command: x, sandbox: {network: ['a b']}}",
            "0.sandbox.network.0': 'a b' is not a host name",
        ),
        ("{id: s, url: 'file:///etc'}", "'mcp_servers.0.url': 'file:///etc' must begin with http://"),
        ("{id: s, url: 'http://h/', transport: stdio}", "'mcp_servers.0.transport': a server with a 'command'"),
        ("{id: s, url: 'http://h/', transport: carrier-pigeon}", "'mcp_servers.0.transport': must be"),
        ("{id: demo, command: x}", "cannot have the id of a server"),
    ],
)
def test_a_mistake_in_a_server_is_named_with_line_key_and_fix(server: str, expected: str) -> None:
    message = complaint(f"{HEAD}tools: [{{id: a, entrypoint: 'a:b'}}]\nmcp_servers:\n- {server}")
    assert expected in message
    assert message.startswith("toolset.yaml line 6: 'mcp_servers.0")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("{tool_id: b}", "'tool_overrides.0.tool_id': 'b' is no tool or server of this toolset"),
        ("{tool_id: 'demo:aa'}", "'demo:aa' is no tool or server of this toolset; did you mean 'demo:a'?"),
        ("{tool_id: a, toolId: a}", "'tool_overrides.0.tool_id': this key occurs twice, once as 'toolId'"),
        ("{tool_id: a, renderer: pdf}", "'tool_overrides.0.renderer': must be 'code'"),
        ("{tool_id: a, renderer_config: {}}", "'tool_overrides.0.renderer_config': a config needs its 'renderer'"),
        (
            "{toolId: a, renderer: html, rendererConfig: {artifact: a/../../b}}",
            "'tool_overrides.0.renderer_config.artifact': 'a/../../b' has '..' in it",
        ),
        ("{tool_id: a}\n- {tool_id: 'demo:a'}", "'tool_overrides.1.tool_id': 'demo:a' occurs twice"),
    ],
)
def test_a_mistake_in_an_override_is_named_with_line_key_and_fix(override: str, expected: str) -> None:
    message = complaint(f"{HEAD}tools: [{{id: a, entrypoint: 'a:b'}}]\ntool_overrides:\n- {override}")
    assert expected in message
    assert message.startswith("toolset.yaml line ")


def test_ids_are_there_once() -> None:
    tool, server = "{id: a, entrypoint: 'a:b'}", "{id: s, command: x}"
    assert "line 6: 'tools.1.id': 'a' occurs twice, as number 1" in complaint(f"{HEAD}tools:\n- {tool}\n- {tool}")
    assert "line 6: 'mcp_servers.1.id': 's' occurs twice" in complaint(f"{HEAD}mcp_servers:\n- {server}\n- {server}")


@pytest.mark.parametrize(
    ("key", "item", "limit"),
    [
        ("tools", "{{id: a{}, entrypoint: 'a:b'}}", 2000),
        ("mcp_servers", "{{id: a{}, command: x}}", 50),
        ("dependencies", "a{}", 100),
        ("secrets", "A{}", 1000),
    ],
)
def test_there_is_a_limit_to_everything(key: str, item: str, limit: int) -> None:
    def listing(count: int) -> str:
        return f"{HEAD}{key}:\n" + "\n".join(f"- {item.format(number)}" for number in range(count))

    assert load(listing(limit))
    assert f"line 4: '{key}'" in complaint(listing(limit + 1))


def test_a_file_that_grows_too_large_when_written_out_is_refused() -> None:
    schema = "{type: object, examples: " + "[" * 40 + "1, " * 120_000 + "]" * 40 + "}"
    assert "written out" in complaint(f"{HEAD}tools:\n- {{id: a, entrypoint: 'a:b', input_schema: {schema}}}")


def test_all_mistakes_are_told_in_the_order_of_their_lines() -> None:
    with pytest.raises(Invalid) as refused:
        load("id: X\nname: x\nversion: '1'\nfoo: 1")
    assert [problem.split(":")[0] for problem in refused.value.details["problems"]] == [
        "toolset.yaml line 1",
        "toolset.yaml line 3",
        "toolset.yaml line 4",
    ]
    assert (refused.value.details["line"], refused.value.details["key"]) == (1, "id")


def test_a_toolset_is_checked_also_when_a_program_makes_one_and_never_changes() -> None:
    server: dict[str, Any] = {"id": "s", "command": "x"}
    with pytest.raises(ValidationError, match="occurs twice"):
        Toolset(id="x", name="x", version="1.0.0", mcp_servers=(Server(**server), Server(**server)))
    with pytest.raises(ValidationError, match="frozen"):
        load(HEAD).name = "other"


def test_a_toolset_that_only_wraps_a_server_may_have_its_id() -> None:
    assert load(f"{HEAD}mcp_servers:\n- {{id: demo, command: x}}").mcp_servers[0].id == "demo"


@pytest.mark.parametrize(
    ("entrypoint", "hint"),
    [("tools.text.count_words", "; did you mean 'tools.text:count_words'?"), ("run", ""), ("tools/text.py:run", "")],
)
def test_an_entrypoint_without_a_colon_names_the_one_that_is_meant(entrypoint: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(f"{HEAD}tools: [{{id: a, entrypoint: '{entrypoint}'}}]")
    assert refused.value.message.endswith(f"{entrypoint!r} is not of the form 'module.path:function'{hint}")
