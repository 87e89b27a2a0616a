"""The command line. Commands translate options into calls of the library; heavy imports wait until one runs."""

from aha.cli.app import app, main

__all__ = ["app", "main"]
