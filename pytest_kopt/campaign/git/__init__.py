"""A campaign's branch, commits and work trees."""
