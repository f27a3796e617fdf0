"""The report: one HTML page of a run, as a file that works offline or served while the run goes on."""
