"""Whether two versions of a kernel are the same, told without a clock."""
