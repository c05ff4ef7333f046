"""The knowledge base as data: sourced hardware facts, reading orders, directions, ceilings."""
