"""Writing to a stderr without a reader: it never waits, drops, counts and says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

from quire.system.background_stream import BackgroundStream


def read_all(descriptor):
    data = b""
    while piece := os.read(descriptor, 1 << 16):
        data += piece
    return data.decode()


def test_what_is_read_arrives_whole_and_in_order():
    reader, writer = os.pipe()
    stream = BackgroundStream(writer)
    found = []
    thread = threading.Thread(target=lambda: found.append(read_all(reader)))
    thread.start()
    lines = [f"line {i} é\n" for i in range(20_000)]
    for line in lines:
        stream.write(line)
    stream.wait_written(60)
    os.close(writer)
    thread.join(60)
    os.close(reader)
    assert found == ["".join(lines)] and stream.num_dropped == 0


def test_a_pipe_that_no_process_reads_stops_no_writer():
    reader, writer = os.pipe()
    stream = BackgroundStream(writer, max_waiting=10_000)
    line = "x" * 99 + "\n"
    for _ in range(5000):
        stream.write(line)
    dropped = stream.num_dropped
    assert 5000 - dropped < 2000, "the pipe's 64 KiB, one write of the thread's, and what may wait"
    stream.wait_written(0.05)  # a bound
    found = []
    thread = threading.Thread(target=lambda: found.append(read_all(reader)))
    thread.start()
    stream.wait_written(60)
    stream.write("after\n")
    stream.wait_written(60)
    os.close(writer)
    thread.join(60)
    os.close(reader)
    told = re.findall(r"\[log\] (\d+) lines were dropped here", found[0])
    assert sum(map(int, told)) == dropped == stream.num_dropped
    assert found[0].count(line) == 5000 - dropped
    assert found[0].endswith("after\n")


def test_a_thread_that_comes_late_loses_nothing(monkeypatch):
    reader, writer = os.pipe()
    stream = BackgroundStream(writer)
    write, late = os.write, threading.Event()
    monkeypatch.setattr(os, "write", lambda *some: write(*some) if late.wait(60) else 0)
    threading.Timer(0.3, late.set).start()
    stream.write("the last line\n")
    stream.wait_written(0.05)
    os.close(writer)
    assert read_all(reader) == "the last line\n"
    os.close(reader)


def test_a_reader_that_is_gone_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    stream = BackgroundStream(writer)
    stream.write("a\nb\n")
    stream.wait_written(60)
    assert stream.num_dropped == 2
    os.close(writer)


CODE = """
import sys
from quire.system.background_stream import use_background_stderr
use_background_stderr()
use_background_stderr()
import click
click.echo("by click é", err=True)
print("by print", file=sys.stderr)
from quire.system.log import get_logger
get_logger("quire.test").info("by logging")
sys.stderr.write("\\udc80")
1 / 0
"""


def test_everything_written_to_stderr_is_there_at_the_end():
    environment = {"PYTHONPATH": ":".join(sys.path), "QUIRE_LOG_LEVEL": "info"}
    result = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True)
    text = result.stderr.decode()
    order = ["by click é", "by print", "by logging", "\\udc80", "Traceback", "ZeroDivisionError"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
