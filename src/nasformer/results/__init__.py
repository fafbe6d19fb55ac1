"""Results of runs as typed values: what a run folder holds, written and read in one place."""
