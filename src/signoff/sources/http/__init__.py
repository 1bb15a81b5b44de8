"""Source `http`: a web server whose answers come when events are settled."""
