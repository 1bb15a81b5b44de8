"""What became of rows that were handed on to another log, brought back to the events they were made from."""
