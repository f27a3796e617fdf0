"""`python -m autoloss`: the command line where its script is not on the PATH, and for torchrun."""

from autoloss.cli import main

main()
