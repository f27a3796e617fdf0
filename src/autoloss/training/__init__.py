"""One training of one network: recipe, loop, execution, checkpoints, processes (Section 4)."""
