"""What follows a search: confirm, compare, score and retrain."""
