"""Models that leave the house."""
