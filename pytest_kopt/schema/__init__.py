"""The frozen CSV: which columns a case has (`profile.py`, with those built in), and its rows.

The JSON Schema of verdict.json is in the folder `schemas`, and has nothing to do with these.
"""
