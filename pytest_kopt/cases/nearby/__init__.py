"""Inputs near those of a case: other shapes, memory, values and arguments."""
