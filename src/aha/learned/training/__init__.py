"""Training an explainer: the loop, its data, models in turn, checkpoints, validation."""
