"""Ranking of items: by queries, or all together."""
