"""What is asked of one pipeline, and done to it: the same for commands, the page and the service.

Every function takes a graph (`load_for_reading`) and works on its state directory, while a run goes on, after
it, and before there was any. What it returns has `to_json`, or is JSON already, in the form that the command
of the same name prints with `--json`. What cannot be meant is a `RequestError`, which names the field.

Nothing here prints, asks or waits for anybody.
"""
