"""Campaigns for other tools: as pandas data frames, and those frames as files."""
