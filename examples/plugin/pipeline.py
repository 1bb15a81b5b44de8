"""The same in Python: the type of the package by its name."""

from signoff import Pipeline

pipeline = Pipeline("mails")
pipeline.source("incoming", "maildir", path="./Maildir")
pipeline.transform("mails", "parse_json", input="incoming", schema="`from` STRING, subject STRING")
pipeline.transform("alarms", "filter", input="mails", where="subject LIKE 'ALARM %'")
pipeline.sink("table", "sqlite", input="alarms", path="./out/alarms.db", table="alarms")

if __name__ == "__main__":
    raise SystemExit(pipeline.run(once=True))
