"""Running a case: its arms, its check against the reference, its times, its row."""
