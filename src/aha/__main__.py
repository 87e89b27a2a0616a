"""`python -m aha`."""

from aha.cli import main

main()
