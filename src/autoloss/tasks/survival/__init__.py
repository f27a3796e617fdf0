"""Survival: the order of times to an event, some of which are censored."""
