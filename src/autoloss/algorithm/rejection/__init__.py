"""Section 3.2, the loss-rejection protocol: the reference, and what decides before it."""
