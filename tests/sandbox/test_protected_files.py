"""Protected files of a person's folder outlast any program, in each sandbox, as root and as a normal user."""

from __future__ import annotations

from textwrap import dedent

import pytest

from .conftest import World

pytestmark = [pytest.mark.promise("C5"), pytest.mark.timeout(240)]

TRY = dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from gateway.errors import GatewayError
    from gateway.sandbox import Mount, Program
    from gateway.sandbox.run import run
    from gateway.workspace.protected import find_protected, mounted, protecting, recover
    from tests.sandbox.siege import BACKENDS

    place = Path(os.environ["TMPDIR"], "person")
    folder = place / "project"
    FILES = {".git/hooks/pre-commit": 0o755, ".git/config": 0o644, "toolgate.yaml": 0o600, "sub/.git/hooks/x": 0o755,
             "sub/.vscode/tasks.json": 0o644, ".git/modules/lib/config": 0o644, "a.txt": 0o644}
    for name, mode in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    (folder / ".envrc").symlink_to("a.txt")

    KILLED = []

    def state():
        return {name: ((folder / name).read_text(), (folder / name).stat().st_mode & 0o777) for name in FILES}

    async def attempt(sandbox, script, approved=(), kill=False):
        before = find_protected(folder)
        mounts = mounted(before, approved) if sandbox.keeps_paths else ()
        mount = Mount(folder, "/workspace", writable=True, kept=mounts)
        program = Program(argv=("/bin/sh", "-c", script), mounts=(mount,), env={"PATH": "/usr/bin:/bin"},
                          cwd=sandbox.inside(mount))
        guard = protecting("tool", folder, place / "store" / "call", before, mounts, approved)
        if kill:
            KILLED.append(guard)  # it never ends
            await guard.__aenter__()
            await run(sandbox, program, timeout=60)
            recover(folder, place / "store")
            return None
        try:
            async with guard:
                await run(sandbox, program, timeout=60)
        except GatewayError as error:
            return error.code
        return None

    SCRIPTS = [
        "for f in .git/hooks/pre-commit .git/config toolgate.yaml sub/.git/hooks/x sub/.vscode/tasks.json"
        " .git/modules/lib/config; do echo planted > $f; done",
        "rm -rf .git/hooks toolgate.yaml sub/.vscode; mkdir toolgate.yaml; echo planted > toolgate.yaml/x",
        "mv .git .git2; mkdir -p .git/hooks; echo planted > .git/hooks/pre-commit",
        "rm -f .git/hooks/pre-commit; ln -s /bin/true .git/hooks/pre-commit",
        "echo planted > .git/hooks/post-commit; chmod 755 .git/hooks/post-commit",
        "rm .envrc; ln -s toolgate.yaml .envrc",
        "mkdir -p hidden/.git/hooks; echo planted > hidden/.git/hooks/pre-commit; chmod 311 hidden",
    ]

    async def main(name):
        sandbox = BACKENDS[name]()
        before = state()
        for kill in (False, True):
            for script in SCRIPTS:
                await attempt(sandbox, script, kill=kill)
                assert state() == before, (script, kill, state())
                assert os.readlink(folder / ".envrc") == "a.txt", script
                hooks = {each.name for each in (folder / ".git/hooks").iterdir() if "toolgate-removed" not in each.name}
                assert hooks == {"pre-commit"}, (script, hooks)
                assert not (folder / "hidden/.git").exists(), script
        assert await attempt(sandbox, "echo agreed > toolgate.yaml", ("toolgate.yaml",)) is None
        assert state() == before | {"toolgate.yaml": ("agreed\\n", 0o600)}
        print("held", flush=True)
        os._exit(0)

    asyncio.run(main(sys.argv[1]))
    """
)


@pytest.mark.parametrize("user", ["root", "user"])
@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_protected_files_outlast_what_a_program_does_to_them(world: World, user: str, backend: str) -> None:
    ran = world.run(user, "-c", TRY, backend, timeout=200)
    assert ran.stdout.strip() == "held", ran.stdout + ran.stderr[-3000:]
