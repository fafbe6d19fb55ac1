"""One paper a file: model, spaces, sharing rules and published archs."""
