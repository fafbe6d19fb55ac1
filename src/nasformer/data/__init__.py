"""Any dataset to batches of tensors on a device; whatever is random is a pure function of (seed, step)."""
