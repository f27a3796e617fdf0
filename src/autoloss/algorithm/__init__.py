"""Section 3.2, Search Algorithm: how losses are found."""
