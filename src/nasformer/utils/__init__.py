"""Helpers that know nothing of architectures: files, typed JSON, units, tables, progress, devices, random numbers."""
