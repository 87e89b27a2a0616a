"""Running a model, whole or in parts: chunks, precision, backends, hooks, the forward cache."""
