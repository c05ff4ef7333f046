"""Profiles: device time per kernel, from torch's profiler and from the vendor's own tool."""
