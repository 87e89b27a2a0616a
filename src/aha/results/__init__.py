"""What a caller gets: explanations and cards, tables of scores, their figures, pages and folders."""
