"""Gradients of the score with respect to the input, and relevance propagation."""
