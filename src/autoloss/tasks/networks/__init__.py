"""Networks of the proxy and of the retraining."""
