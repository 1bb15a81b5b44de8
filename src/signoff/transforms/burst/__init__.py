"""`burst`: many events of a key in a short time are found as they come."""
