"""Helpers that know nothing of architectures: files, typed JSON, figures, tables, progress, random numbers."""
