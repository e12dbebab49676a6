"""Start the support service and a gateway in front of it: `python examples/customer-support/start.py`.

Both stop with Ctrl-C or SIGTERM. The first start makes a key for an agent and one for a lead, and prints them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8420, help="the gateway's port")
    parser.add_argument("--data", type=Path, default=Path("customer-support-data"), help="where both keep their data")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    require_free(options.port)
    options.data.mkdir(parents=True, exist_ok=True)
    service_port = find_port()
    token = secrets.token_urlsafe(32)
    environment = {
        **os.environ,
        "SUPPORT_DATABASE": str(options.data / "support.db"),
        "SUPPORT_TOKEN": token,
        "CUSTOMER_SUPPORT_HOST": f"127.0.0.1:{service_port}",
        "CUSTOMER_SUPPORT_TOKEN": token,
    }
    toolgate = [sys.executable, "-m", "gateway"]
    settings = ["--config", str(HERE / "toolgate.yaml"), "--data-dir", str(options.data / "gateway")]
    uvicorn = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "--log-level", "warning"]
    service = subprocess.Popen([*uvicorn, "--port", str(service_port), "--factory", "service:app"], env=environment)
    try:
        wait_until_ready(f"http://127.0.0.1:{service_port}/healthz")
        if not (options.data / "gateway").exists():
            for role in ("agent", "lead"):
                subprocess.run(
                    [*toolgate, "key", "create", role, "--role", role, *settings], env=environment, check=True
                )
        serve = [*toolgate, "serve", "--transport", "http", "--port", str(options.port), *settings]
        return run_gateway(serve, environment)
    except KeyboardInterrupt:
        return 0
    finally:
        service.terminate()
        service.wait()


def run_gateway(command: list[str], environment: dict[str, str]) -> int:
    gateway = subprocess.Popen(command, env=environment)
    try:
        return gateway.wait()
    except SystemExit:  # Ctrl-C reaches it by itself
        gateway.terminate()
        raise
    finally:
        gateway.wait()


def require_free(port: int) -> None:
    """Say it before the keys are printed if the gateway could not have its port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise SystemExit(f"port {port} is in use; choose another with --port") from None


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{url} does not answer")


if __name__ == "__main__":
    sys.exit(main())
