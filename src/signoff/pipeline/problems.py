"""The kinds of problems a pipeline can have: one table, of which `docs/errors.md` is made.

Invariant: a code, once released, keeps its meaning. `signoff.engine.check` adds those that only
Spark's analyser can find; they stand in the same table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Code:
    """What one kind of problem means and what to do about it."""

    meaning: str
    remedy: str
    example: str


CODES: dict[str, Code] = {
    "no-file": Code(
        "The pipeline file cannot be read.",
        "Check the path. `signoff new DIR` writes a starter project.",
        'alarms.yml [no-file] no such file; did you mean "alarms.yaml"?',
    ),
    "bad-yaml": Code(
        "The file is not YAML, or not a mapping of fields. Nothing else could be checked.",
        "The line is where reading stopped; the cause is often one line earlier. Indent with spaces.",
        "alarms.yaml:7 [bad-yaml] a tab stands where only spaces may; indent with spaces",
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
    "bad-pattern": Code(
        "A datetime pattern is none that Spark can read or write times with.",
        "Correct it: `yyyy-MM-dd HH:mm:ss` has the month as MM, the minute as mm and the hour of 24 as HH.",
        'orders.yaml:12 [bad-pattern] transform "times": "yyyy-MM-ddQ" is not a datetime pattern',
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
        "unacknowledged, that is 200000 / 1500 s = 133.3 a second: with more than that nobody "
        "lets go",
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
    "cannot-stream": Code(
        "Spark cannot keep an aggregate in the state of a stream.",
        "Use another one, such as `collect_list`, and compute the rest of it behind the window.",
        'alarms.yaml:21 [cannot-stream] transform "counts": Spark cannot keep such aggregates in the state '
        "of a stream: …",
    ),
    "distinct-aggregate": Code(
        "An aggregate of a window is of DISTINCT values, which no stream can have.",
        "Use `size(collect_set(…))` for an exact count, or `approx_count_distinct(…)`.",
        'alarms.yaml:21 [distinct-aggregate] transform "counts": count(DISTINCT id) aggregates DISTINCT '
        "values, which a stream cannot",
    ),
    "state-lost": Code(
        "The state of a window or fold is damaged or gone, and it held events.",
        "Put its directory under `state/checkpoints` back. Or give up what it held, with `signoff buffers "
        "drop FILE NAME`, and it begins anew: events that waited for results count as dropped, those that "
        "were settled by a save point are lost.",
        'alarms.yaml:21 [state-lost] transform "counts" has lost its state: the checkpoint … is gone',
    ),
    "window-in-stream": Code(
        "Events of several sources come to a window through one log, because it stands behind a step that "
        "unites events, is a `dedupe` or makes its source a stream (a function on DataFrames): nobody would "
        "know which of the sources is the slowest.",
        "Put the window in front of that step, or use a window for each source.",
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
    "taken-name": Code(
        "Rows that reach a sink have a column of a name that the sink needs for what it computes of them.",
        "Rename the column with a `select` before the sink.",
        'alarms.yaml:25 [taken-name] sink "published": the rows have a column "_routing_key", which is a '
        "name this sink needs for itself",
    ),
    "unknown-type": Code(
        "There is no such type of source, transform or sink.",
        "`signoff describe` lists the types.",
        'alarms.yaml:18 [unknown-type] sink "table" has the unknown type "sqllite"; did you mean "sqlite"?',
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
    "syntax-error": Code(
        "Spark cannot read a SQL expression or a schema.",
        "The message is Spark's own and names the place where reading stopped.",
        'alarms.yaml:15 [syntax-error] transform "failed": syntax error at or near "="',
    ),
    "unresolved-column": Code(
        "An expression names a column that the input does not have.",
        "The hint lists the columns there are; a column exists only below the transform that makes it.",
        'alarms.yaml:15 [unresolved-column] transform "failed_equipment": there is no column '
        '"alarmld"; there is: alarmId, stationId',
    ),
    "duplicate-column": Code(
        "Two columns of one transform would have the same name.",
        "Rename one of them with AS.",
        'alarms.yaml:15 [duplicate-column] transform "totals": "value" is there twice',
    ),
    "type-error": Code(
        "An expression has another type than its place needs.",
        "Cast it, or use a column of the right type.",
        'alarms.yaml:15 [type-error] transform "failed": "alarmId" is int, not boolean',
    ),
    "one-machine": Code(
        "A `dedupe` is in a pipeline whose Spark is a cluster. Its keys are in an SQLite file, which several "
        "machines cannot write to at once, also on a disk that they share.",
        "Use a local master, or put the `dedupe` into a pipeline of its own that has one.",
        'alarms.yaml:18 [one-machine] transform "once" keeps its keys in a file that workers on other '
        "machines cannot share; use a local master, or dedupe in a pipeline of its own that has one",
    ),
    "same-dedupe": Code(
        "A `dedupe` gets rows from both sides of a log (of a window, a fold, a `merge` of several sources): "
        "an event behind the log would wait for one in front of it, which waits for what is behind.",
        "Use a `dedupe` on each side.",
        'alarms.yaml:18 [same-dedupe] transform "once" gets rows from behind a log (of a window, a fold, a '
        "step that unites events or one that makes its source a stream) and from in front of it; use one "
        "for each",
    ),
    "unites-in-stream": Code(
        "A `merge` without keys stands behind a step that may keep state (`python` with "
        "`mode: frame`): which rows were made of the same event is not known behind it.",
        "Give it keys, or put it in front of that step.",
        'alarms.yaml:18 [unites-in-stream] transform "whole" unites what one event was split into, but '
        'behind "once" that is not known',
    ),
    "merge-conflict": Code(
        "Inputs that are united have a column of the same name with types that do not fit together.",
        "Cast one of them with a `select` before.",
        'alarms.yaml:22 [merge-conflict] sink "all": column "value" is int in a and map in b',
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
    "nested-meeting": Code(
        "A step unites events of several sources behind another step that does.",
        "Hand the events on to another pipeline in between.",
        'alarms.yaml:30 [nested-meeting] transform "both" unites events of several sources behind another …',
    ),
    "buffer-type": Code(
        "A column has a type that does not come back from a buffer as it was.",
        "Cast it with a `select` before the sink.",
        'alarms.yaml:30 [buffer-type] sink "store" column "lasted" (interval) cannot be kept in a buffer',
    ),
    "plan-error": Code(
        "Spark refuses the plan for another reason.",
        "The message is Spark's own.",
        'alarms.yaml:15 [plan-error] transform "totals": …',
    ),
    "bad-function": Code(
        "The function of a `python` transform cannot be imported or called, or returns no DataFrame.",
        "Write `function: module:name`; the module is searched next to the pipeline file first.",
        'alarms.yaml:15 [bad-function] transform "enriched": no module named "enrch"',
    ),
    "lost-origins": Code(
        "A function returns rows without the column `_origin`, which says which event they stand for, so "
        "the source could never be told what became of it.",
        "Keep `_origin` in every `select`, and do not aggregate it away.",
        'alarms.yaml:15 [lost-origins] transform "totals": there is no column "_origin"',
    ),
}


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def suggestion(word: str, known: Iterable[str], listing: str) -> str:
    """A hint: the word that was probably meant, else all there are."""
    words = list(known)
    close = did_you_mean(word, words)
    if close:
        return f'did you mean "{close}"?'
    return f"{listing}: {', '.join(words)}" if words else ""


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
