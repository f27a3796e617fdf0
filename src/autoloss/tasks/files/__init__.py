"""What is wrong with a data set's files, and where they lie."""
