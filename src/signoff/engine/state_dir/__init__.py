"""The state directory as a whole: what belongs together, removed nodes, copies, backups, giving up."""
