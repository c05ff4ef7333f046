"""Whole sessions: real pytest runs in small projects, and what they leave behind."""
