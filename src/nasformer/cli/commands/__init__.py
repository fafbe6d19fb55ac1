"""The commands: each a function of a dataclass of options, which are all that may be imported without torch."""
