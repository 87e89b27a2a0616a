"""What every other folder stands on: names, texts of specs, progress, files. It knows no models."""
