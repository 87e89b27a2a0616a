"""Parts of the image removed one at a time, or a few at random."""
