"""A run that ends early: the same command goes on, others are kept out, and no byte differs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from quire.cli.main import run
from quire.quantizing.resumable_run import FOLDER, Unfinished
from tests.commands import COMMAND, environment
from tests.preforked import Preforked
from tests.quantizing.stored_values import FEW, files_of

OPTIONS = ("--method", "gptq", "--group-size", "32", *FEW, "--threads", "1")


@pytest.fixture(scope="module")
def whole(checkpoint, quantized):
    """The files of a run that nothing stopped."""
    return files_of(quantized(checkpoint(), *OPTIONS[:-2]))


def halted(source: Path, out: Path, after: int) -> Preforked:
    """Start a process, and return it halted (SIGSTOP) when it has done a layer and is not done."""
    command = [*COMMAND, "quantize", str(source), str(out), *OPTIONS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for _ in range(20):
        process = Preforked(command, env=environment(), text=True, **pipes)
        while process.poll() is None and not (out / FOLDER / f"layer-{after:05d}").is_dir():
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and status_of(process) != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        if process.poll() is None and not (out / "config.json").exists():
            return process
        process.kill()
        assert process.communicate() and process.returncode in (0, -signal.SIGKILL)
        shutil.rmtree(out)
    raise AssertionError("a run must last until it is seen to have done a layer")


def status_of(process: Preforked) -> str:
    """Return what the system says of a process; nothing where it has ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(psutil.Process(process.pid).status())
    return ""


def times(out: Path) -> dict[str, int]:
    """Return when each layer was done."""
    layers = (out / FOLDER).glob("layer-*")
    return {path.name: path.stat().st_mtime_ns for path in layers}


@pytest.mark.parametrize("after", [0, 1])
def test_a_killed_run_goes_on(checkpoint, whole, tmp_path, after):
    out = tmp_path / "out"
    process = halted(checkpoint(), out, after)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (out / "config.json").exists()
    before, seen = times(out), dict[str, int]()
    assert f"layer-{after:05d}" in before

    def finish(self: Unfinished) -> None:
        seen.update(times(self.out))
        as_ever(self)

    as_ever = Unfinished.finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unfinished, "finish", finish)
        assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 0
    assert before.items() <= seen.items(), "layers that were done are not done again"
    assert files_of(out) == whole


@pytest.mark.parametrize("step", ["write_weights", "copy_files", "write_config", "write_card"])
def test_a_run_that_ends_while_it_is_put_together_goes_on(checkpoint, whole, tmp_path, step):
    out = tmp_path / "out"
    arguments = ["quantize", str(checkpoint()), str(out), *OPTIONS]

    def stop(folder, *given):
        (folder / "model.safetensors").write_bytes(b"half of a file")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"quire.quantizing.output.{step}", stop)
        assert run(arguments) == 130
    assert (out / FOLDER).is_dir()
    assert run(arguments) == 0
    assert files_of(out) == whole


def test_a_layer_that_is_half_written_is_written_again(checkpoint, whole, tmp_path):
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", _no_layer(Path.replace))
        assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 130
    assert (out / FOLDER / "part" / "model.safetensors").exists()
    assert not (out / FOLDER / "layer-00000").exists()
    assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 0
    assert files_of(out) == whole


def _no_layer(replace):
    def stop(self, target):
        if Path(target).name.startswith("layer-"):
            raise KeyboardInterrupt
        return replace(self, target)

    return stop


def test_a_run_killed_while_it_tidies_up_is_a_finished_one(checkpoint, whole, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", _no_removal(shutil.rmtree))
        assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 130
    found = files_of(out)
    assert whole.items() <= found.items()
    assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 1
    assert "which holds files" in capsys.readouterr().err
    assert files_of(out) == found


def _no_removal(rmtree):
    def stop(path, **options):
        if Path(path).name == "part":
            return rmtree(path, **options)
        raise KeyboardInterrupt

    return stop


def test_ctrl_c_ends_with_a_line_that_tells_how_to_go_on(checkpoint, whole, tmp_path):
    out = tmp_path / "out"
    process = halted(checkpoint(), out, 0)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not output
    last = errors.splitlines()[-1]
    assert last == "quire: interrupted; the same command resumes after the last layer"
    assert "Traceback" not in errors
    assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 0
    assert files_of(out) == whole


@pytest.mark.parametrize(
    "other",
    [("--bits", "8"), ("--samples", "7"), ("--damping", "0.02"), ("--skip", "*.down_proj")],
)
def test_another_command_is_refused(checkpoint, stopped, capsys, other):
    before = times(stopped)
    options = [*OPTIONS, *other]
    assert run(["quantize", str(checkpoint()), str(stopped), *options]) == 1
    assert "has an unfinished run of other settings or another source" in capsys.readouterr().err
    assert times(stopped) == before


def test_another_source_is_refused(checkpoint, stopped, tmp_path, capsys):
    source = shutil.copytree(checkpoint(), tmp_path / "source")
    os.utime(source / "model.safetensors", ns=(1, 1))
    assert run(["quantize", str(source), str(stopped), *OPTIONS]) == 1
    assert "another source" in capsys.readouterr().err


def test_a_second_process_is_refused(checkpoint, stopped, capsys):
    with (stopped / FOLDER / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run(["quantize", str(checkpoint()), str(stopped), *OPTIONS]) == 1
    assert "OUT must have one writer" in capsys.readouterr().err


@pytest.fixture(scope="module")
def stopped(checkpoint, tmp_path_factory):
    """A folder in which a layer is done."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    process = halted(checkpoint(), out, 0)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return out


@pytest.mark.parametrize("holds", ["file", "folder of files"])
def test_what_lies_in_out_stays(checkpoint, tmp_path, capsys, holds):
    out = tmp_path / "out"
    kept = out
    if holds != "file":
        out.mkdir()
        kept = out / "notes.txt"
    kept.write_text("kept")
    assert run(["quantize", str(checkpoint()), str(out), *OPTIONS]) == 1
    assert "OUT must be a" in capsys.readouterr().err
    assert kept.read_text() == "kept"
