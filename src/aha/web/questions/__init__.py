"""What can be asked about an image, one file for each question: a job, and the answer as a record under its key."""
