"""Telling real gains from cheats: static audit, dynamic checks, training simulation."""
