"""The ranking bench: does a score know anything about accuracy that the parameter count does not?"""
