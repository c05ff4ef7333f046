"""Campaigns on copies of an upstream project's files."""
