"""The kinds of problems that columns, types and SQL of a pipeline can have: Spark's analyser finds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """What one kind of problem means and what to do about it."""

    meaning: str
    remedy: str
    example: str


COLUMN_CODES: dict[str, Code] = {
    "bad-pattern": Code(
        "A datetime pattern is none that Spark can read or write times with.",
        "Correct it: `yyyy-MM-dd HH:mm:ss` has the month as MM, the minute as mm and the hour of 24 as HH.",
        'orders.yaml:12 [bad-pattern] transform "times": "yyyy-MM-ddQ" is not a datetime pattern',
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
    "taken-name": Code(
        "Rows that reach a sink have a column of a name that the sink needs for what it computes of them, or "
        "those of a function on DataFrames one of a name that the engine needs to account for them.",
        "Rename the column with a `select` before the sink, or in the function.",
        'alarms.yaml:25 [taken-name] sink "published": the rows have a column "_routing_key", which is a '
        "name this sink needs for itself",
    ),
    "cannot-tap": Code(
        "`signoff tap` cannot show the rows of a node without side effects: they come through a step that "
        "runs a function or asks a service, or they are late events of a window.",
        "Tap in front of that step, or behind the window; `--calls` calls functions and services again.",
        'alarms.yaml [cannot-tap] rows come to "table" through enrich "customer", which runs your code '
        "or asks a service; tap in front of it, or use --calls, which calls it again for the rows shown",
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
    "merge-conflict": Code(
        "Inputs that are united have a column of the same name with types that do not fit together.",
        "Cast one of them with a `select` before.",
        'alarms.yaml:22 [merge-conflict] sink "all": column "value" is int in a and map in b',
    ),
    "bad-query": Code(
        "Spark does not accept a query of a job: a wrong column, a wrong type, or no SQL.",
        "Correct the query; the tables in it are its inputs, by their names.",
        'job.yaml:12 [bad-query] transform "by_day": there is no column "dya"',
    ),
    "unknown-table": Code(
        "Which columns a table of a job has is not known before it is read; what reads it was not checked.",
        "Give the table a `schema`.",
        'job.yaml:6 [unknown-table] which columns table "windows" has is not known before it is read',
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
    "not-row-by-row": Code(
        "A function on DataFrames (`python` with `mode: frame`) does more than to make each row of one row: "
        "it aggregates, numbers, limits or joins rows with one another, makes several of one, keeps a copy "
        "of them, computes what differs each time (`rand`, `uuid`), or is not known not to. A batch is "
        "whatever was there when it began, and rows that a sink has not taken are computed again alone: such "
        "a function would make something else of them.",
        "Do that part in a step that is made for it: `merge`, `window`, `fold`, `dedupe`, `unfold`, "
        "`sample`, `lookup`, or `python` with `mode: groups` or `rows`.",
        'alarms.yaml:15 [not-row-by-row] transform "latest": the function of "latest" looks at several rows '
        "at once; a function on DataFrames works on each row by itself; use mode: groups, or a window",
    ),
    "lost-origins": Code(
        "A function returns rows without the column `_origin`, or with something else in it. It says which "
        "event they stand for, so the source could never be told what became of it.",
        "Keep `_origin` in every `select`, as it was given. To aggregate, use `merge` (the events of a "
        "batch), a `window` or a `fold`, whose rows stand for all their events, or a job with `sql`.",
        'alarms.yaml:15 [lost-origins] transform "totals": there is no column "_origin"',
    ),
}
