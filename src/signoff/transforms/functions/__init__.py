"""Steps that call a user's Python function, and the net around it."""
