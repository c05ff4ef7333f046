"""Which commit made it slow: a walk over a history, each step a session of the PR gate."""
