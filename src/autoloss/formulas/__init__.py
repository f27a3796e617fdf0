"""A formula for people: simplified, written, and exported to Python."""
