"""Tasks: what a model learns beyond its backbone. Data format, head, loss, metric and pictures, one file a task."""
