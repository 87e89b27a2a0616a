"""Other backward rules: relevance propagation, and operations replaced for a while."""
