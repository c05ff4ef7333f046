"""What a session can be asked to judge, one pipeline for each question."""
