"""`python -m legato` is the command `legato`."""

from legato.cli import main

main(prog_name="legato")
