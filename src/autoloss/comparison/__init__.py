"""The steps after a search: confirm, compare, score and retrain."""
