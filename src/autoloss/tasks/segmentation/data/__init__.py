"""Images with class masks."""
