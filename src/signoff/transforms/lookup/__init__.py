"""`lookup`: columns of a reference table."""
