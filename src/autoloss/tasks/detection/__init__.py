"""Object detection (Section 4.2)."""
