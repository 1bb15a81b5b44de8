"""The kinds of problems a pipeline can have: one table, of which `docs/errors.md` is made.

Those of columns, types and SQL, which only Spark's analyser can find, are in `column_problem_codes`.
Invariant: a code, once released, keeps its meaning.
"""

from __future__ import annotations

from signoff.pipeline.column_problem_codes import COLUMN_CODES, Code

CODES: dict[str, Code] = {
    "no-file": Code(
        "The pipeline file cannot be read.",
        "Check the path. `signoff new DIR` writes a starter project.",
        'alarms.yml [no-file] no such file; did you mean "alarms.yaml"?',
    ),
    "bad-yaml": Code(
        "The file is not YAML, or not a mapping of fields. Nothing else could be checked.",
        "The line is where reading stopped; the cause is often one line earlier. Indent with spaces.",
        "alarms.yaml:7 [bad-yaml] a tab is where only spaces may be; indent with spaces",
    ),
    "bad-python": Code(
        "A pipeline written in Python raised an error, or does not hold exactly one `Pipeline`.",
        "Run the file with Python; keep one `Pipeline` object at its top level.",
        "alarms.py:12 [bad-python] NameError: name 'parsd' is not defined",
    ),
    "include-conflict": Code(
        "Two files that make up one pipeline (`include`) have the same node or setting.",
        "Keep one of them. What an environment needs otherwise belongs into a profile or an `--overlay`.",
        'parts/sinks.yaml:3 [include-conflict] "sinks.table" is in two files of the pipeline; the other is '
        "alarms.yaml:20; keep one of them; an --overlay or a profile may change what is there",
    ),
    "include-cycle": Code(
        "A file includes itself, perhaps through others.",
        "Remove one of the `include` lines.",
        "parts/b.yaml:1 [include-cycle] a.yaml includes itself: a.yaml → b.yaml → a.yaml; remove one of them",
    ),
    "unknown-profile": Code(
        "`--profile` or `SIGNOFF_PROFILE` names a profile that no file has.",
        "Correct its name, or add it under `profiles:`.",
        'alarms.yaml [unknown-profile] there is no profile "dve"; did you mean "dev"?',
    ),
    "bad-set": Code(
        "A `--set PATH=VALUE` cannot be applied: its path leads nowhere, or its value is not YAML.",
        "Paths are those of the file, with dots: `sinks.table.retry.attempts=3`. Nodes must be there.",
        '--set sinks.tabel.path [bad-set] there is no sink "tabel"; did you mean "table"?',
    ),
    "missing-field": Code(
        "A field that has no default is not there.",
        "Add it. `signoff describe TYPE` shows what it means.",
        'alarms.yaml:21 [missing-field] sink "table" needs the field "table"',
    ),
    "unknown-field": Code(
        "A field is not known at this place. It is never ignored, since it was meant to do something.",
        "Correct its name, or its indentation. `signoff describe TYPE` lists the fields.",
        'alarms.yaml:9 [unknown-field] sink "warehouse" has no field "tabel"; did you mean "table"?',
    ),
    "duplicate-field": Code(
        "A field is written twice in one place; YAML would silently keep the last.",
        "Remove one of them.",
        'alarms.yaml:14 [duplicate-field] sink "table" has the field "path" twice; the first is in line 12',
    ),
    "wrong-type": Code(
        "A value is of another type than the field.",
        "Write a value of the type the message names; quote a text that looks like a number.",
        'alarms.yaml:23 [wrong-type] sink "table" field "retry.attempts" must be a valid integer, not "five"',
    ),
    "bad-value": Code(
        "A value has the right type but may not be used: out of range, not one of the choices, or "
        "refused by the type's own check.",
        "The message names what is allowed.",
        "alarms.yaml:8 [bad-value] source \"incoming\" field \"on_acknowledge\" must be 'keep', 'move' or "
        "'delete', not \"archive\"",
    ),
    "csv-parsed-twice": Code(
        "Rows of a CSV file come as JSON objects of texts; a step parses them once more, as something they "
        "are not, and every row would be a dead letter.",
        "Give the source the `schema`, and read its columns without that step; or read the files as "
        "`format: text` and parse the lines with `parse_csv`.",
        'orders.yaml:9 [csv-parsed-twice] transform "parsed" asks for "id BIGINT", but rows of source '
        '"incoming" (format: csv) hold texts only',
    ),
    "bad-table": Code(
        "The reference table of a `lookup` cannot be read, or cannot be used: a key is there twice, a column "
        "is missing, a value does not fit the schema.",
        "Mend the table, or name another with `from`. While a pipeline runs, the table before stays in use.",
        'orders.yaml:14 [bad-table] transform "stations": 2 keys are there more than once, the first is id 7',
    ),
    "may-deadlock": Code(
        "A step holds events until later ones come, and their source delivers no later ones before it is "
        "acknowledged.",
        "Set `idle_after` (of a fold: `timeout`), so that what is held is let go when no more "
        "events come, or acknowledge events when "
        "they are in the durable state (`acknowledge: save_point`).",
        'alarms.yaml:21 [may-deadlock] transform "counts" holds events until later ones come: size 600 s + '
        'allowed_lateness 900 s = 1500 s. "alarms" delivers none while 200000 events (prefetch) are '
        "unacknowledged, that is 200000 / 1500 s = 133.3 a second: with more than that it waits for ever",
    ),
    "held-too-long": Code(
        "A step may hold events for longer than their source, or its broker, waits for an acknowledgement.",
        "Acknowledge events when they are in the durable state (`acknowledge: save_point`), make the windows "
        "shorter, or raise the timeout at the broker and in the pipeline.",
        'alarms.yaml:21 [held-too-long] transform "counts" may hold an event for size 3600 s + '
        "idle_after 60 s = "
        '3660 s, but "alarms" waits 0.9 x 1800 s = 1620 s (its consumer timeout) for it',
    ),
    "state-changed": Code(
        "A step that keeps state was changed in a way that the state it has cannot follow, while it holds "
        "events.",
        "Let its windows be closed first: run the pipeline as it was once more, with `idle_after: 1s`. "
        "Groups of a fold end by events or by their timeout. Or give up what it holds: take the step out of "
        "the file, `signoff buffers drop FILE NAME`, and put it back.",
        'alarms.yaml:21 [state-changed] transform "counts" has open windows that were begun with '
        'another "keys" '
        '(["stationId"])',
    ),
    "state-left": Code(
        "A window or fold was renamed or removed, or became another step, while it held events: they would "
        "be in no result.",
        "Put it back and let it end: run the pipeline as it was, a window with `idle_after: 1s`. Or give up "
        "what it holds, with `signoff buffers drop FILE NAME`: events that waited for results count as "
        "dropped, those that were settled by a save point are lost.",
        'alarms.yaml [state-left] the step "counts" is not in the pipeline, or is another one, but its state '
        "holds open windows",
    ),
    "state-lost": Code(
        "The state of a window or fold is damaged or gone, and it held events.",
        "Put its directory under `state/checkpoints` back. Or give up what it held, with `signoff buffers "
        "drop FILE NAME`, and it begins anew: events that waited for results count as dropped, those that "
        "were settled by a save point are lost.",
        'alarms.yaml:21 [state-lost] transform "counts" has lost its state: the checkpoint … is gone',
    ),
    "window-in-stream": Code(
        "The window is downstream of a `dedupe` or of a step that merges events, and gets events of several "
        "sources through one log: the watermark could not follow the slowest source.",
        "Put the window upstream of that step, or use a window for each source.",
        'alarms.yaml:21 [window-in-stream] transform "counts" gets events of several sources (a, b) …',
    ),
    "not-shared": Code(
        "The pipeline runs on a cluster, and executors read or write directories (the state directory, what "
        "`files`, `sqlite` and `pipeline` sinks write) that must be the driver's, but may be on each "
        "worker's own disk. Rows written there would count as delivered and be nowhere.",
        "Put them on a file system that every worker mounts at the same path, and set `spark.shared: true`. "
        "A run proves it on every worker; one that does not see the disk does no work. Or use a local "
        "master.",
        "alarms.yaml:3 [not-shared] Spark runs on spark://node1:7077, where each executor would use its own "
        "disk: the state directory (/srv/alarms/state)",
    ),
    "bad-name": Code(
        "A name of a node, or of an output of a `route`, holds other characters than letters, digits and _.",
        "Names appear in event ids and file names: begin with a letter and use letters, digits and _ only.",
        'alarms.yaml:5 [bad-name] source "base-stations" may not be called that; use letters, digits and _',
    ),
    "duplicate-name": Code(
        "Two nodes have the same name. Sources, transforms and sinks share one set of names.",
        "Rename one of them.",
        'alarms.yaml:19 [duplicate-name] sink "parsed" has the name of a transform in line 9',
    ),
    "unknown-type": Code(
        "There is no such type of source, transform or sink.",
        "`signoff describe` lists the types. A type of another package is there once that is installed.",
        'alarms.yaml:18 [unknown-type] sink "table" has the unknown type "sqllite"; did you mean "sqlite"?',
    ),
    "broken-plugin": Code(
        "The type is brought by another package, which cannot be loaded, has no such type, or fails by "
        "surprise where it is checked or built.",
        "The text says what is wrong with which package. Repair or uninstall it.",
        'alarms.yaml:18 [broken-plugin] sink "table": the sink type "kafka" of package acme-signoff 1.2 '
        "(acme_signoff.kafka:KafkaSinkConfig) cannot be used: ModuleNotFoundError: No module named "
        "'kafka'; repair or uninstall the package acme-signoff",
    ),
    "ambiguous-type": Code(
        "An installed package brings a type with the name of a built-in one, or of another package's.",
        "Uninstall it, or have its type renamed. No package takes the place of another type.",
        'alarms.yaml:18 [ambiguous-type] sink "table": the sink type "files" is brought by Signoff itself '
        "and package acme-signoff 1.2, so it is not clear which one is meant; uninstall a package, or have "
        "its type renamed",
    ),
    "missing-source": Code(
        "The pipeline has no source.", "Add one under `sources`.", "alarms.yaml [missing-source] …"
    ),
    "missing-sink": Code(
        "The pipeline has no sink, so no event could ever be delivered.",
        "Add one under `sinks`.",
        "alarms.yaml [missing-sink] …",
    ),
    "missing-input": Code(
        "A transform or sink names no input.",
        "Add `input: NAME` or `inputs: [NAME, …]`.",
        'alarms.yaml:16 [missing-input] sink "archive" has no input; add input: NAME',
    ),
    "unknown-input": Code(
        "An input names no source or transform, or names a sink.",
        "Correct the name; for one output of a `route` write `NAME.OUTPUT`.",
        'alarms.yaml:17 [unknown-input] sink "archive" reads "parsd", which does not exist; '
        'did you mean "parsed"?',
    ),
    "unknown-output": Code(
        "An input names an output that its node does not have, or names a `route` without an output.",
        "Write `NAME.OUTPUT` with one of the outputs of the `route`.",
        'alarms.yaml:17 [unknown-output] sink "archive" reads "kinds.hihg", but transform "kinds" has no '
        'such output; did you mean "kinds.high"?',
    ),
    "duplicate-input": Code(
        "The same input is named twice, which would deliver every row twice.",
        "Remove one of them.",
        'alarms.yaml:17 [duplicate-input] sink "archive" reads "parsed" twice',
    ),
    "cycle": Code(
        "Transforms feed each other in a circle.",
        "Break the circle: rows go from sources to sinks only.",
        'alarms.yaml:9 [cycle] transform "a" reads what it feeds itself: a → b → a',
    ),
    "unreachable": Code(
        "Nothing reads a source or transform: its rows would be computed and thrown away.",
        "Name it as an input somewhere, or remove it.",
        'alarms.yaml:12 [unreachable] nothing reads transform "failed_equipment"',
    ),
    "unused-output": Code(
        "A warning: no node reads an output of a `route`; events that go only there are counted `dropped`.",
        "Read it, or leave it as it is when dropping is what you want.",
        'alarms.yaml:12 [unused-output] nothing reads the output "low" of transform "kinds"',
    ),
    "same-target": Code(
        "Two sinks write to the same place and would overwrite each other's rows.",
        "Give each its own path or table, or make them one sink with several `inputs`.",
        'alarms.yaml:30 [same-target] sink "b" writes to the same place as sink "a"',
    ),
    "bad-path": Code(
        "A path cannot be one: symbolic links lead back to themselves, or a name is too long for any disk.",
        "Correct the path.",
        'alarms.yaml:20 [bad-path] sink "archive" has a path that cannot be used: symbolic links lead '
        "back to themselves",
    ),
    "own-output": Code(
        "A sink writes files where a source of the same pipeline reads, perhaps by a symlink or `**`; or "
        "it sends to the address at which a source of the same pipeline listens.",
        "Give the sink a directory that the source's path does not reach, or the address of another service.",
        'alarms.yaml:20 [own-output] sink "archive" writes to /data/in, where source "incoming" reads',
    ),
    "own-report": Code(
        "A mail attaches, by its path, a file of a report of the same job. The report is written when all "
        "rows are delivered, so the mail would wait for it for ever, or have the one of the run before.",
        "Let the mail read the report (`input: REPORT`, `attachments: [{column: files}]`): it is sent when "
        "the report is there.",
        'daily.yaml:31 [own-report] sink "mail" attaches daily.pdf of sink "daily", which is written when '
        "this mail is sent",
    ),
    "own-moves": Code(
        "A source moves files to where it reads them, perhaps through a symlink: it would take every file "
        "there for one that is done, and read nothing.",
        "Set `move_to` or `refused_to` to a directory of its own.",
        'alarms.yaml:8 [own-moves] source "incoming" moves files to /data/in, where it reads',
    ),
    "shared-files": Code(
        "Two sources read the same files, and one of them moves or deletes them, perhaps before the other "
        "one has read them.",
        "Read them with one source and name it as input twice, or keep the files in both.",
        'alarms.yaml:8 [shared-files] source "a" moves or deletes files that source "b" reads too',
    ),
    "in-state": Code(
        "Files of a node are in the state directory, or the state directory is in what a source reads.",
        "Give each a directory of its own.",
        'alarms.yaml:20 [in-state] sink "archive" would put files into the state directory (/data/state)',
    ),
    "cannot-acknowledge": Code(
        "`acknowledgements: true` is set for a source that cannot be told anything.",
        "Remove the field; such a source takes part without.",
        'alarms.yaml:5 [cannot-acknowledge] source "lines" (stdin) cannot be acknowledged',
    ),
    "cannot-expire": Code(
        "`acknowledge_within` is set for a source that is not told what becomes of its events: it cannot be "
        "acknowledged, or its acknowledgements are off.",
        "Remove the field, or turn acknowledgements on.",
        'alarms.yaml:5 [cannot-expire] source "lines" (stdin) has acknowledge_within, but cannot be '
        "acknowledged",
    ),
    "consumer-timeout": Code(
        "A warning: a sink may retry, or a source wait (`acknowledge_within`), for longer than the broker of "
        "the source waits for an acknowledgement. It then closes the channel and delivers again. A message "
        "with an id is recognised; one without is a new event.",
        "Raise `consumer_timeout` at the broker and in the source, or lower the sink's `retry` or the "
        "source's `acknowledge_within`.",
        'alarms.yaml:30 [consumer-timeout] sink "table" may retry for 2751.1 s (100 attempts, waits up to '
        '30000 ms), but source "incoming" gets its events again after 1800 s',
    ),
    "secret-not-set": Code(
        "A `${NAME}` is not set in the environment, or the file of a `${file:PATH}` cannot be read.",
        "Set it, or give a default: `${NAME:-default}`. A plain `${` is written `$${`.",
        'alarms.yaml:22 [secret-not-set] sink "table" field "url": the variable DB_PASSWORD is not set',
    ),
    "unknown-node": Code(
        "A test names a node that the pipeline does not have, or one of the wrong kind: events are given to "
        "sources or transforms, rows are expected at sinks or transforms.",
        "Correct its name. An output of a `route` is written `name.output`.",
        'alarms.yaml:41 [unknown-node] test "broken lines" names "tabel" in expect, which is no such node; '
        'did you mean "table"?',
    ),
    "one-machine": Code(
        "A `dedupe` or `throttle` is in a pipeline whose Spark is a cluster. Its keys are in an SQLite file, "
        "which several machines cannot write to at once, also on a disk that they share.",
        "Use a local master, or put the step into a pipeline of its own that has one.",
        'alarms.yaml:18 [one-machine] transform "once" keeps its keys in a file that workers on other '
        "machines cannot share; use a local master, or a pipeline of its own for the step that has one",
    ),
    "same-dedupe": Code(
        "A `dedupe` or `throttle` gets rows from both sides of a log (of a window, a fold, a `merge` of "
        "several sources): an event behind the log would wait for one in front of it, which waits for what "
        "is behind.",
        "Use one on each side.",
        'alarms.yaml:18 [same-dedupe] transform "once" gets rows from behind a log (of a window, a fold or a '
        "step that unites events) and from in front of it; use one for each",
    ),
    "mixed-inputs": Code(
        "A sink that tells its inputs apart (`report`) would get them through one buffer, which unites them.",
        "Use a sink for each input, or remove what makes the buffer (`authoritative` at another sink).",
        'alarms.yaml:30 [mixed-inputs] sink "report": its rows come through a buffer, in which inputs '
        "cannot be told apart; use a sink for each input",
    ),
    "contradiction": Code(
        "Two fields of a sink contradict each other.",
        "Choose one of them.",
        'alarms.yaml:30 [contradiction] sink "store" is authoritative and best effort at once',
    ),
    "cannot-refuse": Code(
        "A sink is to refuse events that were acknowledged before it has seen them.",
        "Use `on_failure: dead_letter`, or let events wait for the sink.",
        'alarms.yaml:30 [cannot-refuse] sink "store" cannot refuse events that are acknowledged before …',
    ),
    "no-buffer": Code(
        "A sink that is a log itself is given a buffer.",
        "Remove the field.",
        'alarms.yaml:30 [no-buffer] sink "reports" is a log already, and needs no buffer',
    ),
    "same-buffer": Code(
        "Two sinks would share a buffer, or a node with a log would get rows from two parts of a pipeline.",
        "Give one of them another `buffer.name`; or use a node for each.",
        'alarms.yaml:30 [same-buffer] sink "copy" has the same buffer as sink "store": "store"',
    ),
    "bad-parameter": Code(
        "A value that a job was asked for is missing, of another type, or of no parameter.",
        "Give one value of the right type for each parameter: `-p name=value`.",
        'job.yaml [bad-parameter] parameter "day": "x" is no date; write 2021-05-01',
    ),
    "unknown-parameter": Code(
        "A field of a job, or of a sink that starts it, names a parameter that is not there; or one "
        "that needs a value is given none.",
        "Correct the name, declare it under `parameters` of the job, or give a value or a default.",
        'job.yaml:3 [unknown-parameter] key names "station", which is no parameter',
    ),
    "parameter-in-sql": Code(
        "A parameter of the type string stands in a field that is SQL, as ${name}.",
        "Write :name in a query, or in the where of a table: there it is a value, whatever it holds. For a "
        "filter or a select, bring it as a column: SELECT *, :name AS name.",
        'job.yaml:14 [parameter-in-sql] transform "big" has the parameter "who", a text, in its SQL',
    ),
    "parameter-in-text": Code(
        "A parameter of the type string stands, as ${name}, in a field that is no path: a template, a text "
        "of a report, an address, a header, a table's name, a choice or a setting, for example. Whoever "
        "gives the value, an event for example, would write a part of the job.",
        "For a template bring it as a column of the query (SELECT *, :name AS name) and write {{ name }}: it "
        "is escaped then; in a report, write {first(name)}. Write the others down in the file, or give the "
        "parameter another type.",
        'job.yaml:21 [parameter-in-text] sink "mail" has the parameter "who", a text, in a template',
    ),
    "job-node": Code(
        "A node, or a field of one, is of no use in a job: what a job reads has an end.",
        "Do what the message says; a `sql` can do what steps with memory do.",
        'job.yaml:9 [job-node] source "incoming" (files) has no end, and this is a job',
    ),
    "not-hosted": Code(
        "A text that was submitted to the service names other files (`include`), or is called otherwise than "
        "it was submitted; or its `state` is in the directory of another pipeline, or holds a reference to a "
        "file or a secret, which the service does not follow.",
        "Submit one text under the name that it has; write its `state` as it is, or leave it out.",
        'alarms.yaml:2 [not-hosted] "include" names another file, and only one text was submitted; submit '
        "all of it as one text",
    ),
    "check-failed": Code(
        "The check of a text that was submitted to the service has crashed, or was not done in time.",
        "Try again, or check the file with `signoff check`.",
        "alarms.yaml [check-failed] the pipeline could not be checked within 180 s, or its check has "
        "crashed; make it smaller, or try again",
    ),
    "is-a-job": Code(
        "`signoff run` was given a job.",
        "`signoff jobs run FILE`.",
        "job.yaml [is-a-job] this is a job: it reads tables, and ends",
    ),
    "not-a-job": Code(
        "`signoff jobs`, or a sink `job`, was given a pipeline.",
        "`signoff run FILE` runs a pipeline; a job has parameters, or reads a `table`.",
        "alarms.yaml [not-a-job] this is a pipeline, and no job: it has neither parameters nor a table",
    ),
    "nested-merge": Code(
        "A step merges events of several sources downstream of another step that does.",
        "Hand the events on to another pipeline in between.",
        'alarms.yaml:30 [nested-merge] transform "both" merges events of several sources downstream of …',
    ),
    **COLUMN_CODES,
}


def errors_markdown() -> str:
    """The text of `docs/errors.md`."""
    parts = [
        "# What can be wrong with a pipeline\n",
        "`signoff check FILE` reports every problem of a file in one run, one a line: the file and line, "
        "the code, what is wrong, and what to do. This page lists the codes. It is made by "
        "`signoff describe --errors --markdown`.\n",
    ]
    for code, entry in CODES.items():
        parts.append(f"## {code}\n\n{entry.meaning}\n\n{entry.remedy}\n\n```\n{entry.example}\n```\n")
    return "\n".join(parts)
