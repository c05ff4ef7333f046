"""A pytest session: processes that run cases, and the one that collects and decides."""
