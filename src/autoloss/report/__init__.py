"""What a person sees of a run: tables, the live status, files to take home."""
