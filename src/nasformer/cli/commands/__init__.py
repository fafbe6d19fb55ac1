"""Commands: a function and a dataclass of options each. Their modules import torch inside the functions."""
