"""Measuring: seconds, and what follows from records. Knows nothing of tables or commands."""
