"""Run folders and their contents as typed values."""
