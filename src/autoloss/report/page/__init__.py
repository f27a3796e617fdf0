"""The report: one HTML page of a run, for a file that works offline and for a page that is served while the run goes on."""
