"""`python -m signoff.cli`: the command, also where it is not on the PATH."""

from signoff.cli import main

main()
