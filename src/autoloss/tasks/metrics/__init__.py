"""Evaluation metrics: pure functions, higher is better."""
