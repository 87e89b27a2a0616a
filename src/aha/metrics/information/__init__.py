"""How much a map tells: information curves, and on how few pixels it rests."""
