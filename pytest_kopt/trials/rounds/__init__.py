"""The rounds of a campaign, one file for each kind, and the end of one that is given up."""
