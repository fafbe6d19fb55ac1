"""Searching the search space (S3): which values of each dimension are worth searching among."""
