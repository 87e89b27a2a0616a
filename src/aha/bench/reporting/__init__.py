"""Reports of runs: tables, figures, pages, and two runs compared."""
