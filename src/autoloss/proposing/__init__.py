"""Section 3.2: how losses are proposed, and the history that results."""
