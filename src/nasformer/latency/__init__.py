"""Latency and memory: measuring a machine, predicting nets, and measuring the finalists of a search."""
