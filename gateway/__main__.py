"""`python -m gateway` is `toolgate`."""

from gateway.cli import main

main()
