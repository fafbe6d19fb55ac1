"""Training, evaluation and the search with inherited weights."""
