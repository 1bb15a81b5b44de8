"""The version of Signoff; loads nothing."""

__version__ = "0.1.0"
