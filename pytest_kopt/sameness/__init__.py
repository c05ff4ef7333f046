"""Whether two versions of a kernel are the same, without a clock."""
