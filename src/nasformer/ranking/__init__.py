"""Ranking: how well scores order nets of known accuracy, beside the parameter count and other counts."""
