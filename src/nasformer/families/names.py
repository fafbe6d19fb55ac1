"""The families that come with nasformer; in a file of its own, since knowing their names needs no torch."""

FAMILIES = ("autoformer", "pit", "esformer", "trionet", "s3")
