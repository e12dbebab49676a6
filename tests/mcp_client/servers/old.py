"""A server of the handshake era without the SDK. Its arguments are its habits: what it does with methods it
does not know (refuses, ignores, dies), and whether it is ancient or stubborn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

HABITS = sys.argv[1:]


def say(**message: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(number: object, name: str, arguments: dict[str, object]) -> None:
    if name == "garbage":
        sys.stdout.write("Listening on port 80\n\n{broken json\n\x00\xff\n[]\n17\n")
    if name == "long":
        sys.stdout.write('{"jsonrpc": "2.0", "id": ' + str(number) + ', "result": {"text": "')
        for _ in range(int(str(arguments["mebibytes"]))):
            sys.stdout.write("x" * 1024 * 1024)
        sys.stdout.write('"}}\n')
        sys.stdout.flush()
        return
    if name == "nan":
        sys.stdout.write(
            '{"jsonrpc": "2.0", "id": "' + str(number) + '", "result": {"value": NaN, "text": "\\ud800"}}\n'
        )
        sys.stdout.flush()
        return
    if name == "crash":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(7)
    if name == "child":
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        say(id=number, result={"pid": started.pid, "own": os.getpid()})
        return
    if name == "environment":
        say(id=number, result={"env": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid()})
        return
    if name == "ping":
        say(id="p-1", method="ping")
        say(id=number, result={"got": json.loads(sys.stdin.readline())})
        return
    if name == "deaf":
        time.sleep(300)
    if name == "hush":
        os.close(1)
        time.sleep(300)
    say(id=number, result={"content": [{"type": "text", "text": str(arguments.get("text"))}]})


if "stubborn" in HABITS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    request = json.loads(line)
    method, number = request.get("method"), request.get("id")
    if method == "initialize":
        version = "2024-11-05" if "ancient" in HABITS else request["params"]["protocolVersion"]
        info = {"name": "old", "version": "1"}
        say(id=number, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/call":
        call(number, request["params"]["name"], request["params"].get("arguments") or {})
    elif number is not None and "dies" in HABITS:
        sys.exit("what is " + method)
    elif number is not None and "ignores" not in HABITS:
        say(id=number, error={"code": -32601, "message": "Method not found"})
while "stubborn" in HABITS:
    time.sleep(1)
