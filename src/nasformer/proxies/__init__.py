"""Training-free proxies: scores of untrained networks."""
