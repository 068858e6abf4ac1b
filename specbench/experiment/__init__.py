"""Running: from a configuration to a run folder. Knows nothing of formatting."""
