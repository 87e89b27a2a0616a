"""Orders of patches found by the metrics themselves: MDA, and the search."""
