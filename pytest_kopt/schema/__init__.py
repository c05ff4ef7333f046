"""The frozen CSV: which columns a case has (`profile.py`, with those built in), and its rows."""
