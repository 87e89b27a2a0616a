"""Images, batches, target classes and data sets: everything that is handed to a model, and what is known about it."""
