"""Attention of transformers, alone and with gradients."""
