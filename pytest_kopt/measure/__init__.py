"""Measuring: timing engines and the figures derived from their samples."""
