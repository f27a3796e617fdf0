"""One training: recipe, loop, execution, checkpoints."""
