"""Tools for working on a program, all in the sandbox: code, commands, git, tests, formatting and packages."""
