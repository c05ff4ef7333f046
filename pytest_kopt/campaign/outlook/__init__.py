"""The state of a campaign, the next action, and the reading list, as data."""
