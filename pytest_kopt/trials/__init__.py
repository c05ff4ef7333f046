"""The trials of a session, one pipeline for each question."""
