"""Maps drawn: heat maps, overlays, contact sheets."""
