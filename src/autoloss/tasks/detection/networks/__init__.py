"""Networks for detection."""
