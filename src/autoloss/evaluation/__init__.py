"""What a loss is worth on a task: rejection tests, trainings, the standard loss, and their records (Section 3.2)."""
