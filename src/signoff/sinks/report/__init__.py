"""Sink `report`: one document of all rows of a run."""
