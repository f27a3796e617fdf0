"""The report: one HTML page of a run, as a file that works offline or served during the run."""
