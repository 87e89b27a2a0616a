"""Scores while pixels are removed or put back in the map's order."""
