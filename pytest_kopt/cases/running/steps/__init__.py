"""The steps of a case's check, one file for each kind of call; `running/check.py` orders them."""
