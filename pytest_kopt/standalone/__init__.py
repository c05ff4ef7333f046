"""Verdicts without a campaign: a session of the PR check in a tree that is made for it."""
