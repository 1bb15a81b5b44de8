"""Texts into typed columns: JSON, CSV, regular expressions, pairs."""
