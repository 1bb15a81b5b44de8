"""What a tenant keeps: tokens that do not run out, secrets that stop nothing and are shown to nobody, a trail
that cannot be flooded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from signoff.pipeline.masking import Register, _process, masking, redact
from signoff.service import tenant as tenant_module
from signoff.service.checking import check_text
from signoff.service.handed_secrets import handed_over
from signoff.service.run_log import _KEPT_BYTES, MOST_BYTES, RunLog
from signoff.service.secret_store import SecretStore
from signoff.service.tenant import ADMINISTRATOR, Tenant
from signoff.service.trail import REFUSALS, REFUSALS_S, Trail
from tests.service.client import ONE, TEXT, Client, codes

pytestmark = pytest.mark.servers
KEY = Fernet.generate_key()


# -- tokens


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_kill_in_the_first_start_leaves_somebody_who_can_administer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    from signoff.service import tokens

    written = 0

    def killed_in_between(path: Path, content: bytes) -> None:
        nonlocal written
        if written == after:
            raise Killed
        written += 1
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        for module in (tenant_module, tokens):
            patch.setattr(module, "write_whole", killed_in_between)
        try:
            Tenant(tmp_path / "default", KEY).first_token()
        except Killed:
            assert after < 2
    again = Tenant(tmp_path / "default", KEY)
    again.first_token()
    found = again.tokens.find((again.directory / ADMINISTRATOR).read_text().strip())
    assert found is not None
    assert found.may("administer")


def test_a_start_at_which_nobody_can_administer_any_more_makes_a_token(tmp_path: Path) -> None:
    now = [0.0]
    tenant = Tenant(tmp_path / "default", KEY)
    tenant.tokens._clock = lambda: now[0]
    tenant.tokens.make("short", "administer", expires_at=10.0)
    tenant.tokens.make("viewer", "view")
    assert tenant.first_token() is None
    now[0] = 11.0
    path = tenant.first_token()
    assert path is not None
    assert tenant.tokens.find(path.read_text().strip()) is not None


def test_the_last_token_that_may_administer_is_not_revoked(ask: Client) -> None:
    mine = next(each for each in ask("GET", "/v1/tokens").json()["tokens"] if each["role"] == "administer")
    path = f"/v1/tokens/{mine['id']}"
    assert (ask("DELETE", path).status_code, codes(ask("DELETE", path))) == (409, ["last-administrator"])
    other = ask("POST", "/v1/tokens", json={"name": "other", "role": "administer"}).json()
    assert ask("DELETE", path).status_code == 200
    assert codes(ask("DELETE", f"/v1/tokens/{other['id']}", other["token"])) == ["last-administrator"]


# -- secrets


@pytest.mark.parametrize("value", ["a\0b", "é" * (64 * 1024 - 1)])
def test_a_secret_that_no_process_could_be_given_is_refused(ask: Client, value: str) -> None:
    assert ask("PUT", "/v1/secrets/odd", json={"value": value}).status_code == 422
    assert ask("GET", "/v1/secrets").json() == {"secrets": []}


def test_the_number_of_secrets_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from signoff.service import secret_store

    monkeypatch.setattr(secret_store, "MOST_SECRETS", 2)
    store = SecretStore(tmp_path / "secrets", KEY)
    store.put("a", "1")
    store.put("b", "2")
    store.put("b", "3")
    with pytest.raises(secret_store.Unfit, match="already"):
        store.put("c", "4")


def test_secrets_larger_than_any_environment_keep_no_pipeline_from_being_checked(ask: Client) -> None:
    store = ask.tenant.secrets
    store._write({f"large{number}": "x" * 60_000 for number in range(40)} | {"form": "csv"})
    assert ask.put(TEXT.replace("path: ./out", "path: ./out, format: '${secret:form}'")).status_code == 201


def test_a_process_and_what_it_starts_find_their_secrets_and_their_environment_shows_none(
    tmp_path: Path,
) -> None:
    show = (
        "import os, sys; from pathlib import Path; from signoff.pipeline.variables import Expansion;"
        "print(Expansion(os.environ, Path()).expand('${secret:db}', secret=True, fail=print))"
    )
    program = (
        "import os, subprocess, sys; from signoff.service.handed_secrets import take; take(int(sys.argv[1]));"
        "subprocess.run([sys.executable, '-c', sys.argv[2]]);"
        "print([value for value in os.environ.values() if 'geheim' in value]);"
        "sys.stdout.flush(); os.execv(sys.executable, [sys.executable, '-c', sys.argv[2]])"
    )
    with handed_over({"db": "geheim\0"}) as file:
        done = subprocess.run(
            [sys.executable, "-c", program, str(file), show],
            pass_fds=(file,), capture_output=True, text=True, check=True,
        )  # fmt: skip
        with pytest.raises(OSError):
            os.write(file, b"x")
    assert done.stdout.split("\n") == ["geheim\0", "[]", "geheim\0", ""]


def test_a_secret_that_a_run_has_printed_is_in_no_answer(hosted: Client) -> None:
    first, second = "correct horse", "battery staple"
    for value in (first, second):  # a run that goes on has the first one still
        hosted("PUT", "/v1/secrets/db", json={"value": value})
    pipeline = hosted.tenant.pipelines["alarms"]
    pipeline.log.note(f"login with {first} or {second} failed at https://u:word@db/")
    pipeline._write(pipeline.record.__class__("running", 1))
    pipeline._failed = f"{first} {second}"
    for path in (f"{ONE}/log", ONE, "/v1/pipelines", "/readyz"):
        answer = hosted("GET", path).text
        assert first not in answer and second not in answer and ":word@" not in answer, path
    assert "***" in hosted("GET", f"{ONE}/log").text
    assert "***" in hosted("GET", ONE).text


def test_a_secret_of_one_tenant_is_masked_for_no_other(tmp_path: Path) -> None:
    """Else each could find out, word by word, what the others keep secret."""
    one, other = (Client(Tenant(tmp_path / name, KEY)) for name in ("one", "other"))
    one.tenant.secrets.put("db", "swordfish")
    text = TEXT.replace(
        "files, input: incoming, path: ./out", "http, input: incoming, url: 'http://x:pikeperch@y/'"
    )
    for client in (one, other):
        client.tenant.create("alarms", text if client is one else TEXT, start=False)
        client.tenant.pipelines["alarms"].log.note("swordfish and pikeperch")
    from signoff.service.api.app import ENDPOINTS, _handled
    from signoff.service.api.endpoint import Call
    from signoff.service.api.pipelines import LogPart

    def asked(client: Client, path: str) -> str:
        (endpoint,) = (each for each in ENDPOINTS if each.path == f"/v1/pipelines/{{name}}/{path}")
        token = client.tenant.tokens.all()[0]
        call = Call(client.tenant, token, {"name": "alarms"}, LogPart(), None)
        return str(_handled(endpoint, call).content)

    asked(one, "graph")
    assert asked(one, "log") == "*** and ***"
    assert asked(other, "log") == "swordfish and pikeperch"
    assert redact("swordfish and pikeperch") == "swordfish and pikeperch"


def test_a_log_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets", KEY)
    store.put("db", "one-two-three-four")
    log = RunLog(tmp_path / "run.log")
    log.note("x" * 100 + "one-two-three-four" + "y" * 100)
    with masking(store.register()):
        for most in range(90, 130):
            assert "four" not in log.tail(most)
        assert log.tail() == "x" * 100 + "***" + "y" * 100


SHORT_LINES = "-----BEGIN-----\n" + "".join(f"short{number:04}\n" for number in range(4000))
"""None of its lines is long enough to be masked by itself."""


def _log_of(tmp_path: Path, before: int, secret: str, after: int) -> RunLog:
    (tmp_path / "run.log").write_text("b\n" * (before // 2) + f"said: {secret}\n" + "a\n" * (after // 2))
    return RunLog(tmp_path / "run.log")


def _masking(*secrets: str) -> AbstractContextManager[None]:
    register = Register()
    register.add(*secrets)
    return masking(register)


def test_the_file_is_cut_in_the_midst_of_no_secret(tmp_path: Path) -> None:
    for secret, part in ((SHORT_LINES, "short"), ("S3cr3t-" + "q" * 60_000, "qqqq")):
        log = _log_of(tmp_path, MOST_BYTES, secret, _KEPT_BYTES - len(secret) // 2)
        with _masking(secret):
            log.bound()
            assert log.size() <= _KEPT_BYTES
            assert part not in (tmp_path / "run.log").read_text()
            assert log.tail() == "\n".join("a" * 2000)


def test_a_secret_that_is_still_being_written_is_masked_when_it_is_whole(tmp_path: Path) -> None:
    half = len(SHORT_LINES) // 2
    log = _log_of(tmp_path, MOST_BYTES, SHORT_LINES[:half], 0)
    os.truncate(tmp_path / "run.log", log.size() - 1)  # without the end of the line
    with _masking(SHORT_LINES):
        log.bound()
        with log.open() as file:
            file.write(SHORT_LINES[half:].encode())
        assert log.size() < MOST_BYTES
        assert "short" not in log.tail(1024**2)


def test_what_is_shown_begins_in_no_secret(tmp_path: Path) -> None:
    escaped = json.dumps("\x01\x02\x03\x04" * 16_000)[1:-1]
    cases = ((SHORT_LINES, SHORT_LINES, "short"), ("\x01\x02\x03\x04" * 16_000, escaped, "u0003"))
    for secret, written, part in cases:
        log = _log_of(tmp_path, 1000, written, 100)
        with _masking(secret):
            for since in (0, 1000 + len(written) // 2):  # the file may have been cut since that was its end
                assert part not in log.tail(4000, since)
        # Masks are shorter than what they stand for: the margin is not as long any more.
        (tmp_path / "run.log").write_text(f"{written}\n" * 20)
        with _masking(secret):
            assert part not in log.tail(4000)


# -- what the service does with a text


def test_a_file_that_a_pipeline_names_is_run_and_read_by_no_service(ask: Client, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    code = tmp_path / "job.py"
    code.write_text(f"open({str(marker)!r}, 'w').write('run')")
    secret = tmp_path / "secret"
    secret.write_text("from a file")
    text = TEXT + f"  starts: {{type: job, input: incoming, job: {code}}}\n".replace("'", "")
    text = text.replace("path: ./in/*", f"path: './${{file:{secret}}}/*")
    text = text.replace("*.jsonl}", "*.jsonl'}")
    ask.tenant.create("alarms", text, start=False)
    answer = ask("GET", f"{ONE}/graph")
    assert answer.status_code == 200
    assert "from a file" not in str(ask.tenant.graph("alarms").nodes["incoming"].config)
    assert ask("GET", "/metrics").status_code == 200
    assert not marker.exists()


def test_a_text_in_force_that_names_another_is_not_followed(ask: Client, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TEXT)
    for number, text in enumerate((f"include: {other}\n{TEXT}", f"pipeline: {other}\n")):
        ask.tenant.create(f"odd{number}", text, start=False)
        assert codes(ask("GET", f"/v1/pipelines/odd{number}/graph")) == ["not-hosted"]


def test_a_check_ends_with_the_service_and_by_itself(tmp_path: Path) -> None:
    """Whoever starts it is killed: what the check has started goes, too."""
    place = tmp_path / "alarms"
    place.mkdir()
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    (place / "slow.py").write_text(
        "import os, subprocess, time\n"
        f"report = open({str(fifo)!r}, 'w')\n"  # closed, by the system, when all that have it are gone
        "report.write('on its way\\n'); report.flush()\n"
        "subprocess.Popen(['sleep', '1000'], pass_fds=[report.fileno()])\n"
        "time.sleep(1000)\n"
    )
    program = (
        "import os, sys; from pathlib import Path; from signoff.service.checking import check_text;"
        "check_text(Path(sys.argv[1]), sys.argv[2], os.environ, {}, spark=False)"
    )
    text = TEXT + "  starts: {type: job, input: incoming, job: slow.py}\n"
    service = subprocess.Popen([sys.executable, "-c", program, str(place), text])
    with fifo.open() as report:
        assert report.readline() == "on its way\n"
        service.kill()
        service.wait()
        assert report.read() == ""  # nobody has it any more


def test_a_check_whose_deadline_nobody_keeps_ends_by_its_own(tmp_path: Path) -> None:
    place = tmp_path / "alarms"
    place.mkdir()
    (place / "alarms.yaml").write_text(TEXT + "  starts: {type: job, input: incoming, job: slow.py}\n")
    (place / "slow.py").write_text("import time\ntime.sleep(1000)\n")
    with handed_over({}) as file, subprocess.Popen(
        [sys.executable, "-c", "from signoff.service import checking; checking._GRACE_S = 0.0;"
         "from pathlib import Path; import sys;"
         f"checking.main(Path('alarms.yaml'), 'alarms', 1.0, {file}, False)"],
        cwd=place, stdin=subprocess.PIPE, pass_fds=(file,), start_new_session=True,
    ) as check:  # fmt: skip
        assert check.wait(120) < 0


# -- the trail


def test_refusals_push_no_change_out_of_the_trail(tmp_path: Path) -> None:
    now = [0.0]
    trail = Trail(tmp_path / "trail.jsonl", lambda: now[0])
    trail.add(0.0, "admin", "submit", "alarms", "asked")
    for number in range(5_000):
        trail.refuse(float(number), "viewer", "start", f"x{number}", "refused: the token may not do this")
    assert (tmp_path / "trail.jsonl").stat().st_size < 10_000
    trail.refuse(0.0, "other", "start", "alarms", "refused: 409")  # a token of its own
    now[0] = REFUSALS_S
    lines = trail.last(1000)
    assert [each["token"] for each in lines] == ["admin", *["viewer"] * REFUSALS, "other", "viewer"]
    assert lines[-1]["outcome"] == f"refused: {5_000 - REFUSALS} more within a minute"
    trail.refuse(0.0, "viewer", "start", "alarms", "refused: again")
    assert trail.last(1)[0]["outcome"] == "refused: again"


def test_a_line_that_the_disk_takes_a_part_of_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own: how large its files may become is bounded."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from signoff.service.trail import Trail\n"
        "path = Path(sys.argv[1]); trail = Trail(path)\n"
        "trail.add(0.0, 'admin', 'delete', 'first', 'asked')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))\n"
        "try: trail.add(0.0, 'admin', 'delete', 'second', 'asked')\n"
        "except OSError: print('not done')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))\n"
        "trail.add(0.0, 'admin', 'delete', 'third', 'asked')\n"
    )
    path = tmp_path / "trail.jsonl"
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("not done\n", "")
    assert [json.loads(line)["target"] for line in path.read_text().splitlines()] == ["first", "third"]


def test_a_line_behind_a_torn_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trail.jsonl"
    path.write_text('{"at": "2026-')
    trail = Trail(path)
    for target in ("first", "second"):
        trail.add(0.0, "admin", "delete", target, "asked")
    assert [each["target"] for each in trail.last(10)] == ["first", "second"]


def test_no_name_of_a_token_hides_what_is_done_with_it(tmp_path: Path) -> None:
    trail = Trail(tmp_path / "trail.jsonl")
    for _ in range(3):
        trail.add(0.0, f"{chr(0x1F4A5) * 100} (0bb9123c8ae8)", "delete", "x" * 64, "asked")
    assert (len(trail.last(1)), len(trail.last(3))) == (1, 3)


def test_a_token_that_may_only_look_does_not_fill_the_trail(hosted: Client) -> None:
    for _ in range(REFUSALS + 10):
        assert hosted("POST", f"{ONE}/start", "view").status_code == 403
    for _ in range(REFUSALS + 10):
        assert hosted("POST", "/v1/pipelines/none/start", "operate").status_code == 404
    lines = (hosted.tenant.directory / "trail.jsonl").read_text().splitlines()
    who = [json.loads(each)["token"].split()[0] for each in lines]
    assert (who.count("view"), who.count("operate")) == (REFUSALS, REFUSALS)


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        ("./${file:where}", ["not-hosted"]), ("./${secret:where}", ["not-hosted"]),
        ("../other", ["not-hosted"]),
        ("../other/state", ["not-hosted"]), ("link/state", ["not-hosted"]),
        ("./kept", []), ("./$${file:where}", []), ("../../elsewhere", []),
    ],
)  # fmt: skip
def test_a_state_is_where_the_service_looks_and_in_no_other_pipeline(
    tmp_path: Path, state: str, codes: list[str]
) -> None:
    place = tmp_path / "pipelines" / "alarms"
    place.mkdir(parents=True)
    (place / "where").write_text("there")
    (place / "link").symlink_to(tmp_path / "pipelines" / "other")
    text = TEXT.replace("name: alarms", f"name: alarms\nstate: {state}")
    found = check_text(place, text, os.environ, {"where": "there"}, spark=False)
    assert [each.code for each in found.problems] == codes, found.problems
    assert [each.line for each in found.problems] == [2 for _ in codes]


def test_check_text_needs_no_environment_for_secrets(tmp_path: Path) -> None:
    text = TEXT.replace("path: ./out", "path: ./out, format: '${secret:form}'")
    found = check_text(tmp_path / "alarms", text, os.environ, {"form": "csv"}, spark=False)
    assert found.problems == ()
    assert "SIGNOFF_SECRETS" not in os.environ
    assert not _process.values & {"csv"}
