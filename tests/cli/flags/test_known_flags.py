"""Flags of other servers' scripts: each is taken, and one that does nothing says so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from quire.cli.main import COMMANDS, cli
from quire.cli.serve import serve
from quire.server.server_options import ServerOptions
from quire.settings.config import SETTINGS
from quire.settings.known_settings import KnownSetting, engine_settings, flag_name, server_settings
from quire.settings.other_programs import instead_of, same_flags, tables
from tools.serve_process import ServeProcess

#: But for those that are settings of the server itself.
KNOWN: dict[str, KnownSetting] = {
    name: setting
    for name, setting in (engine_settings() | server_settings()).items()
    if name not in {field.name for field in fields(ServerOptions)}
}
INSTEAD = instead_of("flags", "engine")

SCRIPTS = """
--model quire-tiny
quire-tiny
--tensor-parallel-size 4
--pipeline-parallel-size 2
--max-model-len 4096
--gpu-memory-utilization 0.95
--enable-prefix-caching
--enable-chunked-prefill
--max-num-batched-tokens 8192
--max-num-seqs 256
--block-size 16
--quantization awq
--quantization gptq
--quantization fp8
--kv-cache-dtype fp8
--dtype auto
--dtype bfloat16
--dtype float16
--enforce-eager
--port 8000
--disable-log-requests
--enable-lora
--lora-modules sql=path
--max-loras 4
--max-lora-rank 16
--limit-mm-per-prompt image=1
--speculative-model draft
--num-speculative-tokens 5
--speculative-max-model-len 2048
--use-v2-block-manager
--api-key token-abc123
""".strip().splitlines()

#: Every flag of ``vllm serve`` 0.33, with a value that asks for something.
VLLM = """
--host 127.0.0.1 --port 8000 --uds /tmp/a --grpc-port 9 --uvicorn-log-level info --disable-uvicorn-access-log
--disable-access-log-for-endpoints /health --allow-credentials --allowed-origins http://a
--allowed-methods ["GET"] --allowed-headers ["x"] --api-key k --ssl-keyfile k --ssl-certfile c --ssl-ca-certs a
--root-path /x --middleware !a.b --enable-request-id-headers --disable-fastapi-docs
--h11-max-incomplete-event-size 4096 --h11-max-header-count 10 --lora-modules a=b --chat-template t.jinja
--chat-template-content-format openai --trust-request-chat-template
--default-chat-template-kwargs {"enable_thinking":false} --response-role !user --return-tokens-as-token-ids
--enable-auto-tool-choice --exclude-tools-when-tool-choice-none --tool-call-parser hermes --tool-parser-plugin !p.py
--tool-server !demo --reasoning-parser qwen3 --max-log-len 5 --enable-log-requests --enable-log-outputs
--enable-prompt-tokens-details --enable-per-request-metrics --enable-server-load-tracking
--enable-force-include-usage --sse-keep-alive-interval 0 --enable-tokenizer-info-endpoint --fingerprint-mode none
--shutdown-timeout 0 --headless
--model quire-tiny --served-model-name a --tokenizer t --tokenizer-mode slow --runner pooling --convert embed
--dtype half --seed 1 --max-model-len 25.5k --max-model-len auto --max-model-len -1 --revision main --trust-remote-code
--download-dir /models --load-format dummy --quantization fp8 -q awq --kv-cache-dtype fp8 --block-size 32
--gpu-memory-utilization 0.92 --kv-cache-memory-bytes 1GiB --cpu-offload-gb 2 --num-gpu-blocks-override 9
--enable-prefix-caching --no-enable-prefix-caching --prefix-caching-hash-algo xxhash
--max-num-batched-tokens 4096 --max-num-seqs 9 --max-num-active-seqs 3 --max-num-queued-reqs 4
--max-num-queued-tokens 4 --long-prefill-token-threshold 4 --enable-chunked-prefill --scheduling-policy priority
--scheduler-reserve-full-isl --prefill-schedule-interval 2 --watermark 0.1 --stream-interval 2 --async-scheduling
--max-logprobs 5 --logprobs-mode !processed_logprobs --logits-processors !a.b --generation-config auto
--override-generation-config {"temperature":0.5}
--enable-lora --max-loras 2 --max-lora-rank 8 --max-cpu-loras 2 --lora-dtype float16 --fully-sharded-loras
--tensor-parallel-size 2 -tp 2 --pipeline-parallel-size 2 -pp 2 --data-parallel-size 2 -dp 2
--enable-expert-parallel -ep --decode-context-parallel-size 2 -dcp 2 --prefill-context-parallel-size 2 -pcp 2
--distributed-executor-backend ray --nnodes 1 -n 1 --node-rank 0 -r 0
--speculative-config {"method":"ngram"} -sc {} --spec-method ngram --spec-model m --spec-tokens 3
--structured-outputs-config {"backend":"xgrammar"} --limit-mm-per-prompt {"image":1} --mm-processor-kwargs !{"a":1}
--mm-processor-cache-gb 1 --enforce-eager --compilation-config 3 -cc 3 --optimization-level 1 -O 1
--performance-mode throughput --attention-config {"a":1} -ac {"a":1} --kv-transfer-config {"a":1}
--kv-events-config {"a":1} --kv-offloading-size 4 --kv-offloading-backend lmcache --enable-sleep-mode
--otlp-traces-endpoint http://localhost:4318/v1/traces --collect-detailed-traces all --kv-cache-metrics
--custom-histogram-buckets {"a":1} --show-hidden-metrics-for-version 0.1 --disable-log-stats --watchdog-config {"a":1}
--log-level debug --logging-config f.json --fail-on-environ-validation
""".split()  # noqa: E501


def vllm_flags() -> list[tuple[list[str], bool]]:
    """Return each flag with its value, and whether it is refused (its value begins with ``!``)."""
    found: list[tuple[list[str], bool]] = []
    for word in VLLM:
        if word.startswith("-") and not word[1:].isdigit():
            found.append(([word.removesuffix("!")], word.endswith("!")))
        else:
            words, refused = found.pop()
            found.append(([*words, word.removeprefix("!")], refused or word.startswith("!")))
    return found


def say(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Return what parsing the command line writes on stderr."""
    serve.make_context("serve", list(args))
    return capsys.readouterr().err


def test_every_flag_of_a_script_is_taken(capsys):
    wrong = {}
    for line in SCRIPTS:
        flag, *rest = line.split()
        said = say(capsys, flag, *rest)
        if flag in map(flag_name, KNOWN):
            if not (said.startswith(f"quire: {line} ") and said.count("\n") == 1):
                wrong[line] = said
        elif said:
            wrong[line] = said
    assert wrong == {}


def test_every_flag_of_vllm_is_known(capsys):
    """Forty of them ended in "No such option"."""
    wrong = {}
    for words, refused in vllm_flags():
        try:
            said = say(capsys, *words)
        except click.UsageError as error:
            if not (refused and re.search(r"\[config\] --\S+ .+Leave it out\.", str(error))):
                wrong[" ".join(words)] = str(error)
            capsys.readouterr()
            continue
        meant = r"quire: --\S+.* (is|changes|names|needs) .+\.\n"
        if refused or not (said == "" or re.fullmatch(meant, said)):
            wrong[" ".join(words)] = said
    assert wrong == {}


def test_what_asks_for_nothing_is_no_news(capsys):
    wrong = {}
    for name, setting in KNOWN.items():
        flag = flag_name(name)
        lines = [[], *([flag, value] for value in setting.neutral)]
        if setting.is_switch:
            lines.append([f"--no-{flag.removeprefix('--')}"])
        for words in lines:
            if said := say(capsys, *words):
                wrong[" ".join([flag, *words])] = said
    assert wrong == {}


def test_what_asks_for_something_is_said_in_one_line(capsys):
    wrong = {}
    for name, setting in KNOWN.items():
        if setting.is_refused:
            continue
        words = [flag_name(name), *([] if setting.is_switch else ["7"])]
        said = say(capsys, *words)
        if not (said.startswith(f"quire: {' '.join(words)} ") and said.count("\n") == 1):
            wrong[" ".join(words)] = said
    assert wrong == {}


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_width_that_cannot_be_is_misuse(value, capsys):
    with pytest.raises(click.UsageError, match="size must be a whole number"):
        say(capsys, "--decode-context-parallel-size", value)


def parsed(*args: str) -> dict[str, Any]:
    return serve.make_context("serve", list(args)).params


def test_several_names_of_the_model():
    """vLLM's flag takes several words; none of them is the model."""
    for args in (
        ["m", "--served-model-name", "a", "b", "--port", "1"],
        ["--model", "m", "--served-model-name", "a", "b", "--port", "1"],
        ["m", "--port", "1", "--served-model-name", "a", "--served-model-name", "b"],
        ["--served-model-name", "a", "--served-model-name=b", "--port", "1", "m"],
    ):
        found = parsed(*args)
        assert found["served_model_name"] == ("a", "b"), args
        assert found["model_argument"] == "m" or found["model"] == "m"
        assert found["port"] == 1
    assert parsed("--served-model-name", "a", "m")["model_argument"] == "m"
    keys = parsed("m", "--api-key", "a", "b", "--lora-modules", "x=1", "y=2")["api_key"]
    assert keys == ("a", "b")


def test_they_are_not_in_the_help():
    shown = serve.get_help(serve.make_context("serve", []))
    assert not [name for name in map(flag_name, KNOWN) if re.search(rf"{name}\s", shown)]


def test_the_form_of_older_scripts_starts(device):
    arguments = ["--model", "quire-tiny", "--device", device, "--memory", "64MiB", "--port", "0"]
    process = ServeProcess(
        [*arguments, "--threads", "1", "-tp", "1"], command=["quire.cli.api_server"]
    )
    try:
        assert process.wait_ready().startswith("http://127.0.0.1:")
        assert process.end() == 0, process.stderr
    finally:
        if process.popen.returncode is None:
            process.popen.kill()
            process.end()


OTHERS = """
-c 512 -np 4 -t 1 -m quire-tiny
-ngl 99 -fa on --jinja -m quire-tiny
-hf quire-tiny --ctx-size 512
--model-id quire-tiny --max-total-tokens 512 --num-shard 1
--model-path quire-tiny --context-length 512 --tp 1
""".strip().splitlines()


@pytest.mark.parametrize("line", OTHERS)
def test_flags_of_other_servers_mean_the_same(line: str) -> None:
    """All of llama-server's flags were unknown, and TGI's; the hints named other flags."""
    result = CliRunner().invoke(serve, [*line.split(), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert ("of 2,048 tokens" in result.output) == ("512" not in line)


@pytest.mark.parametrize("flag", INSTEAD)
def test_flags_that_are_called_otherwise_say_how(flag: str) -> None:
    result = CliRunner().invoke(serve, [flag, "1"])
    assert result.exit_code == 2 and INSTEAD[flag] in result.output


def names_of(place: str) -> set[str]:
    """Return the flags of a command, and the commands of a group."""
    if place in ("engine", "quire"):
        return names_of("serve") if place == "engine" else set(COMMANDS)
    command = cli.get_command(click.Context(cli), place)
    assert command is not None, place
    nested = set(command.commands) if isinstance(command, click.Group) else set()
    return nested.union(*((*param.opts, *param.secondary_opts) for param in command.params))


@pytest.mark.parametrize(
    ("kind", "place", "remedy", "words"),
    [
        (kind, place, remedy, words)
        for kind in ("flags", "commands")
        for places, remedies in tables()[kind].items()
        for place in places.split()
        for remedy, words in remedies.items()
    ],
)
def test_what_is_written_instead_exists_and_what_exists_is_written(
    kind: str, place: str, remedy: str, words: str
) -> None:
    assert not set(words.split()) & names_of(place), "we have it"
    named = re.findall(r"quire ([a-z][a-z-]*)", remedy)
    assert set(named) <= set(COMMANDS)
    flags = set(re.findall(r"--[a-z][a-z-]*", remedy.partition("pip ")[0]))
    assert flags <= set().union(*map(names_of, (*named, place)))


def test_flags_of_other_programs_are_none_of_ours() -> None:
    of_server = {field.name for field in fields(ServerOptions)}
    aliases = {name for field in SETTINGS.values() for name in field.metadata.get("aliases", ())}
    ours = {*map(flag_name, {*SETTINGS, *of_server}), *aliases}
    same = [flag for flags in same_flags().values() for flag in flags]
    assert len(set(same)) == len(same) and not set(same) & ours
    assert set(same_flags()) <= set(SETTINGS) and not set(engine_settings()) & set(SETTINGS)
    assert not set(server_settings()) & {*SETTINGS, *engine_settings(), *of_server}
    whys = " ".join(known.why for known in KNOWN.values())
    assert set(re.findall(r"--[a-z][a-z-]*", whys)) <= names_of("serve")


def test_names_of_other_programs_stay_out_of_the_help() -> None:
    shown = CliRunner().invoke(serve, ["--help-all"]).output
    wrong = CliRunner().invoke(serve, ["--max-model-len", "tk"]).output
    for flag in (flag for same in same_flags().values() for flag in same if flag.startswith("--")):
        assert not re.search(rf"{flag}\b(?!-)", shown) and flag not in wrong


def test_the_page_for_switchers_is_the_code_s() -> None:
    page = (Path(__file__).parents[3] / "docs/coming_from.md").read_text()
    for name, same in same_flags().items():
        (row,) = re.findall(rf"^\| `{flag_name(name)}`.*", page, re.MULTILINE)
        assert set(re.findall("`(-[^`]*)`", row)) == {flag_name(name), *same}
    rows = page.partition("## Flags that are called otherwise")[2].partition("## HTTP")[0]
    elsewhere = [row.split("|")[1] for row in re.findall(r"^\| `.*", rows, re.MULTILINE)]
    assert set(re.findall("`(-[^`]*)`", " ".join(elsewhere))) == set(INSTEAD)


def test_a_wrong_device_says_that_gpus_are_missing() -> None:
    result = CliRunner().invoke(serve, ["--device", "cuda"])
    assert result.exit_code == 2 and "there is no GPU backend yet" in result.output
