"""Tests that need a GPU; they skip, with the reason, where there is none."""
