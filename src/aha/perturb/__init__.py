"""Images with pixels taken away or put back: parts, references, and the model's answers."""
