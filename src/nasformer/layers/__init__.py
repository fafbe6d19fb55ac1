"""Layers of all families, each with its closed-form cost."""
