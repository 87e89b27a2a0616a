"""From a name, a file or a module to a model that can be explained: sources, weights, preprocessing, class names."""
