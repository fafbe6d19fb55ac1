"""The ranking bench: does a score know anything about accuracy that the parameter count does not?"""

from nasformer.ranking.bench import rank
from nasformer.ranking.counts import trivial_counts
from nasformer.ranking.plot import plot_ranking
from nasformer.ranking.result import Ranking
from nasformer.ranking.table import Table, read_table
from nasformer.ranking.view import print_ranking

__all__ = ["Ranking", "Table", "plot_ranking", "print_ranking", "rank", "read_table", "trivial_counts"]
