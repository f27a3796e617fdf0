"""`python -m autoloss.cli`, which earlier pages name for torchrun."""

from autoloss.cli import main

main()
