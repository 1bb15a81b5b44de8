"""The Signoff source `maildir`."""
