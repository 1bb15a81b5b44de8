"""The class-data archive of Java: nothing depends on it, and nobody else's is used. Without starting Java."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from signoff.engine.spark import class_archive
from signoff.engine.spark.session import java_options


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark of the test, and an empty cache."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setattr(class_archive, "find_java", lambda: home)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "a.jar").write_bytes(b"a")
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(class_archive.SUBMIT_OPTIONS, raising=False)
    monkeypatch.delenv(class_archive.SWITCH, raising=False)
    return jars


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the run that makes an archive is told; it makes one."""
    seen: list[str] = []

    def run(command: list[str], options: str) -> None:
        seen.append(options)
        made = options.partition("-XX:ArchiveClassesAtExit=")[2].partition(" ")[0]
        Path(made).write_bytes(b"classes")

    monkeypatch.setattr(class_archive, "_run", run)
    return seen


def test_an_archive_that_was_made_is_used(jars: Path, runs: list[str]) -> None:
    assert class_archive.use("") == "", "there is none yet"
    place = class_archive.make()
    assert place is not None and place.read_bytes() == b"classes" and len(runs) == 1
    assert f"-XX:SharedArchiveFile={place} " in class_archive.use("")
    assert f"-XX:SharedArchiveFile={place} " in java_options(Path("spark.log"), "-Xss4m")
    assert class_archive.make() == place and len(runs) == 1, "it is made once"
    assert place.parent.stat().st_mode & 0o077 == 0
    assert not list(place.parent.glob("making-*")), "nothing is left of the making"


def test_other_jars_or_another_java_have_another_archive(jars: Path, runs: list[str]) -> None:
    first = class_archive.make()
    (jars / "a.jar").write_bytes(b"another")
    second = class_archive.archive()
    assert class_archive.use("") == "" and second != first
    (jars.parents[1] / "java" / "release").write_text('JAVA_VERSION="21.0.1"\n')
    assert class_archive.archive() not in (first, second)


@pytest.mark.parametrize(
    "options", ["-XX:SharedArchiveFile=/mine.jsa", "-Xshare:off", "-XX:ArchiveClassesAtExit=/mine.jsa"]
)
def test_who_has_decided_about_archives_is_left_alone(
    jars: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    class_archive.make()
    assert class_archive.use(options) == ""
    monkeypatch.setenv(class_archive.SUBMIT_OPTIONS, options)
    assert class_archive.use("") == ""


def test_it_can_be_switched_off(jars: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive.make()
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert class_archive.use("") == ""


def test_what_others_could_have_written_is_not_used(jars: Path, runs: list[str]) -> None:
    place = class_archive.make()
    assert place is not None
    place.chmod(0o666)
    assert class_archive.use("") == ""
    place.chmod(0o600)
    assert class_archive.use("") != ""
    place.parent.chmod(0o777)
    assert class_archive.use("") == ""
    place.parent.chmod(0o700)
    place.rename(place.with_suffix(".else"))
    place.symlink_to(place.with_suffix(".else"))
    assert class_archive.use("") == ""


def test_what_others_could_have_put_another_in_the_place_of_is_not_used(jars: Path, runs: list[str]) -> None:
    place = class_archive.make()
    assert place is not None
    above = place.parent.parent
    for mode, used in ((0o777, False), (0o775, False), (0o1777, True), (0o755, True)):
        above.chmod(mode)
        assert bool(class_archive.use("")) is used, oct(mode)
    elsewhere = above.with_name("elsewhere")
    elsewhere.mkdir()
    above.rename(elsewhere / "cache")
    above.symlink_to(elsewhere / "cache")
    assert class_archive.use("") != ""
    elsewhere.chmod(0o777)
    assert class_archive.use("") == ""
    place.unlink()
    assert class_archive.make() is None


def test_two_do_not_make_it_at_once_and_what_a_dead_one_left_is_removed(jars: Path, runs: list[str]) -> None:
    place = class_archive.archive()
    assert place is not None
    left = place.parent / "making-killed"
    left.mkdir(parents=True)
    place.parent.chmod(0o700)
    with open(place.parent / "making.lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert class_archive.make() is None and not runs and left.exists()
    assert class_archive.make() == place
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_no_error(
    jars: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert class_archive.make() is None and class_archive.use("") == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with a blank"))
    assert class_archive.make() is None and class_archive.use("") == ""


def test_a_java_that_makes_none_is_not_asked_again_for_a_day(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(class_archive, "_run", lambda *_: None)
    assert class_archive.make() is None
    monkeypatch.setattr(class_archive.subprocess, "Popen", lambda *args, **_: started.append(args))
    class_archive.make_later()
    assert not started
    place = class_archive.archive()
    assert place is not None
    os.utime(place.with_suffix(".failed"), (0, 0))
    class_archive.make_later()
    assert len(started) == 1


def test_archives_that_nobody_uses_are_removed(jars: Path, runs: list[str]) -> None:
    first = class_archive.make()
    assert first is not None
    old = first.with_name("spark-old.jsa")
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    (jars / "a.jar").write_bytes(b"another")
    second = class_archive.make()
    assert second is not None and second.exists() and first.exists() and not old.exists()
    os.utime(second, (time.time() - 10 * 86_400,) * 2)
    class_archive.use("")
    assert time.time() - second.stat().st_mtime < 60, "a use is remembered"


def test_making_waits_for_the_process_behind_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java writes the archive when the run that has started it is long gone."""
    java = f"import time; time.sleep(0.5); open({str(tmp_path / 'made')!r}, 'w').close()"
    run = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {java!r}])"
    class_archive._run([sys.executable, "-c", run], "")
    assert (tmp_path / "made").exists()


def test_the_version_of_java_is_read_without_starting_it(tmp_path: Path) -> None:
    from signoff.engine.spark.java import _version

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.3"\n')
    assert _version(java) is None, "what cannot be started is no Java"
    java.chmod(0o755)
    assert _version(java) == 21
    assert subprocess.run([java], check=False).returncode == 1
