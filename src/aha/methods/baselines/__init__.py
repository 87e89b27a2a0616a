"""Maps that ignore the model, or hardly read it: what every method has to beat."""
