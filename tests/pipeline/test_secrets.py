"""References are expanded, and what they stand for is shown nowhere."""

from __future__ import annotations

import base64
import html
import io
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from signoff.catalog import default
from signoff.cli import app
from signoff.engine.delivery.sink_pass import Pass
from signoff.engine.spark.stack_traces import last_line
from signoff.engine.spark.worker_errors import tell_spark
from signoff.engine.state_queries.window_query import _reason as window_reason
from signoff.errors import PipelineError
from signoff.pipeline.load import load
from signoff.pipeline.overlays import Layers
from signoff.pipeline.secrets import SecretUrl, excerpt, redact, register_secret, reveal
from signoff.sinks.contract import BatchRef
from signoff.sinks.refusal import brief
from signoff.sources.files.parquet_rows import _brief as parquet_brief
from signoff.sources.stations import SimulationConfig
from tests.pipeline.toys import GOOD, Table, graph_of, only_problem, problems_of, said


def with_fields(*lines: str) -> str:
    return GOOD.replace("table: everything", "\n    ".join(["table: everything", *lines]))


def table_of(folder: Path, *lines: str, **environ: str) -> Table:
    config = graph_of(folder, with_fields(*lines), environ).nodes["all"].config
    assert isinstance(config, Table)
    return config


def test_references_are_expanded(tmp_path: Path) -> None:
    (tmp_path / "token.txt").write_text("from a file\n")
    text = with_fields("token: ${file:token.txt}", "last: ${LAST}", "first: ${FIRST:-3}")
    config = graph_of(tmp_path, text.replace("everything", "${A}_$${A}_${B:-b}"), {"A": "a", "LAST": "8"})
    table = config.nodes["all"].config
    assert isinstance(table, Table) and table.token
    assert (table.table, table.first, table.last) == ("a_${A}_b", 3, 8)
    assert table.token.get_secret_value() == "from a file"


def test_a_dollar_sign_alone_is_a_dollar_sign(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, GOOD.replace("high: a > 5", "high: \"b rlike '^x$' or b = '$.a'\""))
    assert graph.nodes["kinds"].config.routes["high"] == "b rlike '^x$' or b = '$.a'"  # type: ignore[attr-defined]


def test_a_default_serves_for_empty_as_well_as_for_unset(tmp_path: Path) -> None:
    assert table_of(tmp_path, "first: ${F:-4}", F="").first == 4


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("${NOPE}", "the variable NOPE is not set"),
        ("${file:none.txt}", "${file:none.txt} cannot be read: No such file or directory"),
        ("${9}", 'a "${" is not followed by a reference'),
        ("${A", 'a "${" is not followed by a reference'),
    ],
)
def test_a_reference_that_stands_for_nothing_is_one_problem_with_its_line(
    tmp_path: Path, written: str, message: str
) -> None:
    problem = only_problem(tmp_path, with_fields(f'url: "postgres://me:{written}@db/x"'))
    assert said(problem).startswith(f'alarms.yaml:20 [secret-not-set] sink "all" field "url": {message}')


def test_problems_show_the_reference_instead_of_its_value(tmp_path: Path) -> None:
    text = with_fields("sizes: ${SIZE}", "login: {user: [x], passwrd: '${PW}'}", "token: [1]")
    shown = "\n".join(map(str, problems_of(tmp_path, text, {"SIZE": "sesame-open", "PW": "hunter-two"})))
    assert 'not "${SIZE}"' in shown
    assert "sesame-open" not in shown
    assert "hunter-two" not in shown


def test_a_value_in_a_secret_field_is_never_shown_even_when_it_is_wrong(tmp_path: Path) -> None:
    text = with_fields("token: 90817263", "headers: {a: 55443322}", "login: {password: [77665544]}")
    shown = "\n".join(map(str, problems_of(tmp_path, text)))
    assert shown.count("must be a valid string") == 3
    assert not any(value in shown for value in ("90817263", "55443322", "77665544"))


def test_no_secret_is_in_the_repr_of_a_graph(tmp_path: Path) -> None:
    text = with_fields(
        "url: postgres://me:${PW}@db:5432/x?sslpassword=${PW2}",
        "token: ${TOKEN}",
        "headers: {Authorization: 'Bearer ${TOKEN}'}",
        "login: {password: plain-password}",
    )
    environ = {"PW": "hunter-two", "PW2": "hunter-three", "TOKEN": "to/k en"}
    graph = graph_of(tmp_path, text, environ)
    for shown in (repr(graph), str(graph.nodes["all"].config), graph.nodes["all"].config.model_dump_json()):
        assert not any(value in shown for value in (*environ.values(), "plain-password"))
    assert "postgres://me:***@db:5432/x" in repr(graph)
    assert redact("could not log in with plain-password, to%2Fk%20en") == "could not log in with ***, ***"


def test_a_config_goes_to_another_process_with_its_secrets_and_comes_back(tmp_path: Path) -> None:
    config = table_of(
        tmp_path, "url: http://u:${PW}@h/", "token: ${PW}", "login: {password: '${PW}'}", PW="pw of mine"
    )
    sent = json.dumps(reveal(config))
    assert Table.model_validate(json.loads(sent)) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_time_comes_whole_to_another_process() -> None:
    config = SimulationConfig.model_validate({"start": "2017-02-19T04:40:00Z"})
    assert SimulationConfig.model_validate(json.loads(json.dumps(reveal(config)))) == config


def test_another_process_masks_what_it_was_sent() -> None:
    import subprocess
    import sys

    config = Table(table="t", input="x", token="sent-by-pickle", url="amqp://u:p@ss-word@h/v")
    program = (
        "import pickle, sys; from signoff.pipeline.secrets import redact\n"
        "config = pickle.load(sys.stdin.buffer)\n"
        "print(redact('sent-by-pickle p@ss-word'), config.url)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(config), capture_output=True, check=True
    )
    assert run.stdout.decode().strip() == "*** *** amqp://u:***@h/v"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u:secret@h/db failed", "postgresql://u:***@h/db failed"),
        ("amqp://u:a@b:c@h:5672/v", "amqp://u:***@h:5672/v"),
        ("see https://ghp_abc@host/x", "see https://***@host/x"),
        ("http://h/x?token=abc&page=2", "http://h/x?token=***&page=2"),
        ("http://h/x?api_key=abc", "http://h/x?api_key=***"),
        ("host=h password=abc user=u", "host=h password=*** user=u"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("http://host:8080/path and me@example.org", "http://host:8080/path and me@example.org"),
        ("http://u:p@a/ http://u:q@b/", "http://u:***@a/ http://u:***@b/"),
        ("file:///tmp/x, a://b", "file:///tmp/x, a://b"),
    ],
)
def test_secrets_are_masked_by_their_place(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_short_values_are_not_masked_everywhere() -> None:
    register_secret("a")
    register_secret("")
    assert redact("an apple") == "an apple"


@settings(max_examples=60, deadline=None)
@given(
    password=st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*\"'\\"), min_size=6
    )
)
def test_a_password_never_shows_in_a_secret_url(password: str) -> None:
    from urllib.parse import quote

    for written in (password, quote(password, safe="")):
        url = SecretUrl(f"x://host_of:{written}@0/")
        assert url.get() == f"x://host_of:{written}@0/"
        assert written not in str(url) and password not in repr(url)


def test_text_is_masked_before_it_is_cut() -> None:
    register_secret("correct-horse-battery")
    for length in range(10, 40):
        shown = excerpt("the key is correct-horse-battery, it says", length)
        assert "corr" not in shown and len(shown) <= length
    assert brief(f"{'x' * 490} correct-horse-battery").endswith(" ***")


def test_a_secret_is_masked_in_every_form_it_takes_on_the_way() -> None:
    register_secret("pa ss/wörd+'\"<1")
    value = "pa ss/wörd+'\"<1"
    forms = [
        quote(value, safe=""), quote(value, safe="").lower(), quote(value), quote_plus(value),
        json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), html.escape(value),
    ]  # fmt: skip
    for form in forms:
        assert not any(part in redact(f"said {form} here") for part in ("ss", "rd", "ö")), form
    for before in ("", "u", "me", "her"):
        for after in ("", ":", ":x", "more"):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                text = encode(f"{before}{value}{after}".encode()).decode()
                own = base64.b64encode(value.encode()).decode()[4:12] if not before else text[8:16]
                assert own not in redact(f"said {text} here")


def test_secrets_that_overlap_or_hold_each_other_leave_nothing_behind() -> None:
    for value in ("swordfish", "fishmonger", "fish", "ordf"):
        register_secret(value)
    assert redact("a swordfishmonger, fish; swordfish") == "a ***, ***; ***"


def test_a_secret_with_blanks_is_masked_however_they_are_folded() -> None:
    register_secret("open\t the  gate\nnow")
    assert brief("said open\t the  gate\nnow to us") == "said *** to us"
    assert redact("said open the gate now to us") == "said *** to us"


def test_every_line_of_a_key_is_masked() -> None:
    register_secret("-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n")
    assert redact("bad line MIIEvQIBADANBgkq") == "bad line ***"


def test_short_secrets_are_masked_where_they_stand_alone() -> None:
    register_secret("ab1")
    assert redact("cab1n: 'ab1', x=ab1") == "cab1n: '***', x=***"


def test_a_password_with_an_at_sign_and_a_slash_leaves_no_rest() -> None:
    url = SecretUrl("postgresql://me:a@b/c@db/x")
    assert str(url) == "postgresql://me:***@db/x"
    assert redact('could not connect to "postgresql://me:a@b/c@db/x"').count("b/c") == 0


def test_what_a_header_holds_is_a_secret_without_its_scheme_too() -> None:
    login = base64.b64encode(b"me:opensesame").decode()
    Table(table="t", input="x", headers={"A": "Bearer tok-12345", "B": f"Basic {login}"})
    assert redact("said tok-12345, opensesame and " + login) == "said ***, *** and ***"


def test_a_password_among_the_parameters_of_an_address_is_masked_alone() -> None:
    SecretUrl("postgresql://db/x?user=me&password=p%20q-rs")
    assert redact("no role with p q-rs") == "no role with ***"


def test_text_that_utf8_cannot_hold_is_made_fit_to_be_written() -> None:
    assert redact("a \ud800 b").encode() == rb"a \ud800 b"


def test_an_executor_masks_the_secrets_of_the_whole_pipeline() -> None:
    import subprocess
    import sys

    register_secret("of-another-sink")
    program = (
        "import pickle, sys; from signoff.pipeline.secrets import redact\n"
        "pickle.load(sys.stdin.buffer); print(redact('of-another-sink'))"
    )
    sent = pickle.dumps(Pass(BatchRef("s", 0, 1), (), (), None))
    run = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert run.stdout.decode().strip() == "***"


def test_what_a_worker_tells_spark_holds_no_secret_and_can_always_be_said() -> None:
    register_secret("told-by-worker")
    out = io.BytesIO()
    try:
        raise ValueError("told-by-worker \ud800")
    except ValueError as error:
        tell_spark(error, out)
    said_to_spark = out.getvalue()[8:].decode()
    assert said_to_spark.strip().endswith("ValueError: *** \\ud800")


def test_a_value_that_is_too_long_to_show_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    secret = "s3cr3t-" * 12
    problem = only_problem(tmp_path, with_fields("first: ${KEY}"), {"KEY": secret})
    assert "s3cr3t" not in str(problem)


@pytest.mark.parametrize(
    "part", ["x", "a:", "://", "a://b:", "?a", "password", "basic ", " ", "&key=", "@", "%41"]
)
def test_a_long_text_is_masked_in_no_time(part: str) -> None:
    register_secret("x" * 20 + "y")
    began = time.monotonic()
    redact(part * (1_000_000 // len(part)))
    assert time.monotonic() - began < 20, "quadratic would be hours"


SHORT_LINES = "first-part\nsecnd-part"
LONG = "S3cr3t-Passphrase-of-the-lake"


@pytest.mark.parametrize("shorten", [last_line, window_reason, parquet_brief])
def test_an_error_is_masked_before_a_line_of_it_is_chosen_or_cut(
    shorten: Callable[[Exception], str],
) -> None:
    register_secret(SHORT_LINES)
    register_secret(LONG)
    told = shorten(ValueError(f"[BAD] password {SHORT_LINES} refused"))
    assert "first-part" not in told and "***" in told
    for length in range(270, 520):
        told = shorten(ValueError("x" * length + LONG))
        assert "S3cr" not in told, length


def test_what_spark_says_of_an_expression_is_masked_before_it_is_cut() -> None:
    from signoff.engine.plan.analysis_errors import first_line
    from signoff.transforms.contract import FieldError
    from signoff.transforms.parsing.parse_json import _from_ddl

    secret = "first-half-of-it\nsecond-half-of-it"
    register_secret(secret)
    assert "first-half" not in first_line(f"cannot parse {secret}")
    assert first_line("\n") == "no reason was given"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "signoff.transforms.parsing.parse_json.StructType.fromDDL",
            lambda text: (_ for _ in ()).throw(ValueError(f"no such type: {text}")),
        )
        with pytest.raises(FieldError) as raised:
            _from_ddl(f"a {secret}")
    assert "first-half" not in str(raised.value)


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize("how", ["${HTTP_TOKEN}", "${file:token}", "${HTTP_TOKEN:-}", "{value}"])
@pytest.mark.parametrize("node", ["source", "transform", "sink"])
def test_an_empty_token_is_refused(tmp_path: Path, node: str, how: str, value: str) -> None:
    (tmp_path / "token").write_text(value)
    token = json.dumps(how.replace("{value}", value))
    own = {name: f", token: {token}" if name == node else "" for name in ("source", "transform", "sink")}
    (tmp_path / "p.yaml").write_text(
        f"name: p\nsources: {{s: {{type: http, port: 0{own['source']}}}}}\n"
        f"transforms: {{e: {{type: enrich, input: s, url: 'http://h/', into: a{own['transform']}}}}}\n"
        f"sinks: {{o: {{type: http, input: e, url: 'http://h/'{own['sink']}}}}}\n"
    )
    with pytest.raises(PipelineError) as raised:
        load(tmp_path / "p.yaml", default(), {"HTTP_TOKEN": value})
    assert [problem.code for problem in raised.value.problems] == ["bad-value"]
    assert 'field "token": it is empty' in str(raised.value)


def _headers(tmp_path: Path, written: str) -> Path:
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: p\nsources: {s: {type: stdin}}\nsinks:\n  o:\n    type: http\n    input: s\n    url: 'http://h/'\n"
        f"    headers:\n      Authorization: {written}\n"
    )
    return file


@pytest.mark.parametrize(
    "written", ['"Bearer ${EMPTY}"', '"${EMPTY}"', '"Bearer ${file:empty}"', "Bearer", '""']
)
def test_a_header_that_lacks_its_secret_is_refused_and_not_sent_without_it(
    tmp_path: Path, written: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    file = _headers(tmp_path, written)
    with pytest.raises(PipelineError) as raised:
        load(file, default(), {"EMPTY": " "})
    problem = raised.value.problems[-1]
    assert (problem.code, problem.line) == ("bad-value", 9 if "$" in written else 4)
    assert "empty" in problem.message
    if "$" in written:  # whoever only looks at a pipeline needs no secret of it
        load(file, default(), {"EMPTY": " "}, require_secrets=False)


def test_a_secret_may_be_empty_where_its_default_says_so(tmp_path: Path) -> None:
    graph = load(_headers(tmp_path, '"Key k${EMPTY:-}"'), default(), {"EMPTY": ""})
    assert graph.nodes["o"].config.headers["Authorization"].get_secret_value() == "Key k"  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["file", "overlay", "new node of an overlay"])
@pytest.mark.parametrize("bare", ["token:", "token: # later", "token: null"])
def test_a_token_with_nothing_behind_it_does_not_mean_that_everybody_may_come_in(
    tmp_path: Path, where: str, bare: str
) -> None:
    source = "sources:\n  s:\n    type: http\n    port: 0\n    "
    main = {"file": source + bare, "overlay": source + "token: t", "new node of an overlay": ""}[where]
    over = "" if where == "file" else source + bare
    (tmp_path / "p.yaml").write_text(f"{main}\nname: p\nsinks: {{o: {{type: console, input: s}}}}\n")
    (tmp_path / "over.yaml").write_text(f"{over}\nx-over: 1\n")
    layers = Layers(overlays=(str(tmp_path / "over.yaml"),))
    if bare == "token: null":  # that was written on purpose
        graph = load(tmp_path / "p.yaml", default(), layers=layers)
        assert graph.nodes["s"].config.token is None  # type: ignore[attr-defined]
        return
    with pytest.raises(PipelineError) as raised:
        load(tmp_path / "p.yaml", default(), layers=layers)
    (problem,) = raised.value.problems
    assert (problem.code, problem.line) == ("bad-value", 5)
    assert 'source "s" field "token": it has no value' in problem.message


@pytest.mark.parametrize(
    "command", ["graph", "graph --mermaid", "config", "status --json", "audit --json", "sources list --json"]
)
def test_no_command_that_shows_a_pipeline_shows_what_its_references_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Wherever they stand: in an address, in its parameters, in a path, in an expression."""
    monkeypatch.setenv("PIPELINE_PASSWORD", "s3cret/Pa@ss")
    (tmp_path / "pipeline.yaml").write_text(
        """
name: hidden
sources:
  incoming: {type: rabbitmq, url: "amqp://tester:${PIPELINE_PASSWORD}@localhost:1/", queues: [q]}
  more: {type: files, path: "./in/${PIPELINE_PASSWORD}/*.jsonl"}
transforms:
  rows: {type: filter, inputs: [incoming, more], where: "payload != '${PIPELINE_PASSWORD}'"}
sinks:
  hook: {type: http, input: rows, url: "http://u:${PIPELINE_PASSWORD}@localhost/?api_key=${PIPELINE_PASSWORD}"}
  table: {type: postgres, input: rows, url: "postgres://u:${PIPELINE_PASSWORD}@h/d", table: t}
"""
    )
    shown = CliRunner().invoke(app, [*command.split(), str(tmp_path / "pipeline.yaml")])
    assert shown.exit_code == 0, shown.output
    assert "incoming" in shown.output
    assert not any(part in shown.output for part in ("s3cret", "Pa@ss", "Pa%40ss"))
