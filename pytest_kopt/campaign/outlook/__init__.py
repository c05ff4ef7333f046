"""Where a campaign stands, what is next and what to read first, as data."""
