"""Shared weights for a whole space: the supernet, its samplers, its storage and its health."""
