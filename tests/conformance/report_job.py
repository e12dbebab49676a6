"""The command the suite starts as its client: hands the job to the test and ends as that says.

It imports nothing but the standard library, so that fifty of them cost little.
"""

import json
import os
import socket
import sys

job = {
    "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
    "version": os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"],
    "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
    "url": sys.argv[2],
}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(json.dumps(job).encode() + b"\n")
    sys.exit(0 if connection.recv(1) == b"+" else 1)
