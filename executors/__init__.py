"""A plan becomes events: one file a noun."""
