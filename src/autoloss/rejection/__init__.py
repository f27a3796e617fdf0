"""Section 3.2: the loss-rejection protocol and the gradient-equivalence keys."""
