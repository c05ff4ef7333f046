"""The decision: rows and a policy in, a verdict out; no clock, no disk."""
