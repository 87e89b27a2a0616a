"""Images with pixels taken away or put back: parts, references, and the model's answers."""

from aha.perturb import filling, rearranged  # noqa: F401  # for the sake of the references that they register
