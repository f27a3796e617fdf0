"""Output for people: tables, the live status, the report, exported losses."""
