"""The SQLite file of a run."""
