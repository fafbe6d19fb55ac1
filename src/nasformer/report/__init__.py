"""Reports: runs, comparisons and evaluations as HTML pages, figures and tables."""
