"""`enrich`: asking a web service about each event."""
