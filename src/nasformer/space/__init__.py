"""The space algebra: declare once which architectures may be chosen; sample, search, count and check follow.

A space is a tree of four kinds of nodes. Each knows its size, its smallest and largest member, and how to
sample, enumerate, validate, encode, mutate and cross. No torch here: everything is plain Python, and all
randomness comes from the `random.Random` that is passed in.

>>> from random import Random
>>> from nasformer import Choice, Repeat, Struct
>>> from nasformer.space.mutation import MUTATIONS
>>> block = Struct(num_heads=Choice(3, 4), mlp_ratio=Choice(3.5, 4.0))
>>> space = Struct(embed_dim=Choice(192, 216, 240), blocks=Repeat(block, depth=Choice(12, 13, 14)))
>>> space.cardinality
1056964608
>>> arch = space.sample(Random(0))
>>> space.contains(space.mutate(arch, Random(1), MUTATIONS["code"]))
True
"""
