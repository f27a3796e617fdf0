"""`python -m autoloss.cli`, for torchrun."""

from autoloss.cli import main

main()
