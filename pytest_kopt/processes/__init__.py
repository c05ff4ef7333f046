"""The processes that run kernel code: how they are started, told what to do, and ended."""
