"""Run the chapters: which pages there are, whether one is stale, papermill, and batches of runs."""
