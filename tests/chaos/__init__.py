"""The chaos run: a known set of messages, every process killed at random moments, and an exact verdict."""
