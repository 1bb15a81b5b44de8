"""Sink `postgres`: upserts by event id."""
