"""Families of networks, one paper a file: model, spaces, sharing rules, published archs and weights."""
