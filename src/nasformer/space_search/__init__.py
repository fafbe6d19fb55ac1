"""Search of the search space (S3): the values of each dimension shift to where sampled architectures do better."""
