"""The steps of a check, a kind of call a file; `honesty/checks.py` lists them in their order."""
