"""CAAP: activations of one image in the run of another."""
