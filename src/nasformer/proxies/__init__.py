"""Training-free proxies: scores of untrained networks, one file each behind one registry."""
