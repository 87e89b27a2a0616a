"""`recommend`: a race of methods on one's own images within a budget, and what it says."""
