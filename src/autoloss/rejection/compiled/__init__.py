"""The rejection protocol in compiled loops."""
