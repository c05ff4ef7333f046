"""Arguments of a function from a real run, and cases that draw such arguments again."""
