"""Telling real gains from cheats: notes on sources, and what calls and their results show."""
