"""Scores of perturbed images: masks, parts of images, tokens."""
