"""Shared weights for a whole space."""
