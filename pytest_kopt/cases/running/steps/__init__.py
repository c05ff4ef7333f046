"""The steps of a case's check, one file for each kind of call; `honesty/checks.py` orders them."""
