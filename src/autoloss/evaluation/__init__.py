"""The worth of a loss on a task: rejection tests, trainings, the standard loss, and their records (Section 3.2)."""
