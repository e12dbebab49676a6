"""`python -m gateway` is `toolgate`."""

from .cli import main

main()
