"""Settings of ranks: which hardware, how a model is divided over it, and who starts them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, cast, get_args

from quire.core.counts import parse_count
from quire.core.errors import ConfigError
from quire.settings.option import options_of
from quire.settings.parallel_layout import ParallelLayout

option = options_of("parallel")
Device = Literal["auto", "cpu", "reference"]
#: The most parts of each kind of division: more than a cluster of processors has.
MAX_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """Settings of the hardware, and of the model's division over it."""

    device: Device = option(
        "auto",
        "backend: cpu (native kernels) or reference (torch)",
        unavailable=dict.fromkeys(
            ("cuda", "cuda:0", "gpu", "rocm", "mps", "metal", "vulkan", "xpu"),
            "must be cpu: there is no GPU backend yet",
        ),
    )
    threads: int | None = option(
        None,
        "compute threads of each rank; default: this process's cores, divided",
        common=True,
        env="OMP_NUM_THREADS",
    )
    tensor_parallel_size: int = option(
        1, "ranks (processes) that share each layer", aliases=("-tp",), common=True
    )
    pipeline_parallel_size: int = option(
        1, "stages of consecutive layers, each on ranks of its own", aliases=("-pp",)
    )
    stage_layers: str | None = option(
        None, "layers of each stage, such as 10,22; default: as many in each"
    )
    stage_devices: str | None = option(
        None, "backend of each stage, such as cpu,reference, in place of --device"
    )
    stage_memory: str | None = option(
        None, "bytes of each stage, such as 2GiB,1GiB; default: the engine's memory, divided"
    )
    device_map: Literal["auto"] | None = option(
        None, "auto: stages by memory, one where the first device holds the model"
    )
    max_memory: str | None = option(
        None,
        "devices of --device-map, in order, with the most bytes of each: cpu=2GiB,reference=1GiB; "
        "default: --device and what is free",
        is_json=True,
    )
    data_parallel_size: int = option(
        1, "engines of the model that share its requests (quire serve)", aliases=("-dp",)
    )
    enable_expert_parallel: bool = option(
        False,
        "give each rank of a mixture of experts whole experts, not a part of each",
        aliases=("-ep",),
    )
    num_redundant_experts: int = option(
        0, "places for further copies of experts, on all ranks together"
    )
    enable_eplb: bool = option(False, "move experts between ranks by the rows that they get")
    eplb_step_interval: int = option(3000, "steps between two looks at the experts' rows")
    exact_tensor_parallel: bool = option(
        True, "the same bits as one rank; off: each rank sums a part, with half the messages"
    )
    distributed_executor_backend: Literal["auto", "uni", "mp", "ray"] = option(
        "auto", "way to start ranks: mp: this engine, as processes; ray: a Ray cluster"
    )

    nnodes: int = option(1, "machines of ranks or engines, started one by one", aliases=("-n",))
    node_rank: int = option(0, "index of this machine among --nnodes; 0 serves", aliases=("-r",))
    master_addr: str = option("127.0.0.1", "address of machine 0 that the other machines reach")
    master_port: int = option(29501, "port of machine 0 that the other machines connect to")

    @property
    def layout(self) -> ParallelLayout:
        """The division of the model between ranks."""
        counts = tuple(int(count) for count in _parts(self.stage_layers) if count.isdecimal())
        return ParallelLayout(self.tensor_parallel_size, self.pipeline_parallel_size, counts)

    def of_rank(self, rank: int) -> ParallelOptions:
        """Return a rank's own: its device is that of its stage."""
        devices, (stage, _) = _parts(self.stage_devices), self.layout.place(rank)
        if not devices:
            return self
        return replace(self, device=cast(Device, devices[stage]), stage_devices=None)

    def memory_of_rank(self, rank: int) -> int | None:
        """Return the bytes that are given for it; None where none are."""
        given, (stage, _) = _parts(self.stage_memory), self.layout.place(rank)
        return parse_count(given[stage]) // self.tensor_parallel_size if given else None

    def of_stages(
        self, layers: Sequence[range], devices: Sequence[str], memory: Sequence[int]
    ) -> ParallelOptions:
        """Return these settings with the stages that a device map has found."""
        return replace(
            self,
            pipeline_parallel_size=len(layers),
            stage_layers=",".join(str(len(own)) for own in layers),
            stage_devices=",".join(devices),
            stage_memory=",".join(map(str, memory)),
        )

    def undivided(self) -> ParallelOptions:
        """Return these settings for one process that has the whole model."""
        return ParallelOptions(device=self.device, threads=self.threads)

    @property
    def deals_engines(self) -> bool:
        """Whether machines have whole engines, not ranks of one."""
        return self.nnodes > 1 and (self.layout.size == 1 or self.data_parallel_size > 1)

    @property
    def places_engines(self) -> bool:
        """Whether Ray places whole engines, not ranks of one."""
        is_whole = self.layout.size == 1 or self.data_parallel_size > 1
        return self.distributed_executor_backend == "ray" and is_whole

    def engines_of(self, node: int) -> range:
        """Return the engines of a machine."""
        each = self.data_parallel_size // self.nnodes
        return range(node * each, (node + 1) * each)

    def num_own_engines(self, num_prefill: int = 0) -> int:
        """Return the engines on the server's machine, all for outputs among them.

        Args:
            num_prefill: Number of engines that compute prompts for the others.
        """
        count = self.data_parallel_size
        if self.deals_engines:
            return len(self.engines_of(0))
        if self.places_engines:
            return count - num_prefill if num_prefill else 1
        return count

    @property
    def machine_ranks(self) -> int:
        """Ranks that share a machine, as they are meant to be placed: in Ray those of a stage."""
        if self.distributed_executor_backend == "ray":
            return self.tensor_parallel_size
        return self.layout.size // (1 if self.deals_engines else self.nnodes)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a machine, of those that are started one by one."""
        each = self.machine_ranks
        return range(node * each, (node + 1) * each)

    def check(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            ConfigError: A number is out of range; the message names its flag.
        """
        self._check_stages()
        self._check_device_map()
        at_least_one = {
            "--threads": self.threads,
            "--tensor-parallel-size": self.tensor_parallel_size,
            "--pipeline-parallel-size": self.pipeline_parallel_size,
            "--data-parallel-size": self.data_parallel_size,
            "--nnodes": self.nnodes,
            "--eplb-step-interval": self.eplb_step_interval,
        }
        for flag, value in at_least_one.items():
            if value is not None and value < 1:
                raise ConfigError(f"[config] {flag} must be at least 1; got {value}.")
            # Plans have an entry for each thread, rank, stage and machine.
            if flag != "--eplb-step-interval" and value is not None and value > MAX_RANKS:
                raise ConfigError(f"[config] {flag} must be at most {MAX_RANKS}; got {value}.")
        if self.num_redundant_experts < 0:
            raise ConfigError(
                "[config] --num-redundant-experts must be at least 0; got "
                f"{self.num_redundant_experts}."
            )
        whole = self.enable_expert_parallel and self.tensor_parallel_size > 1
        if (self.num_redundant_experts or self.enable_eplb) and not whole:
            raise ConfigError(
                "[config] --enable-eplb and --num-redundant-experts are of whole experts on "
                f"several ranks; got --tensor-parallel-size {self.tensor_parallel_size}, "
                f"--enable-expert-parallel {self.enable_expert_parallel}. Give both, or leave "
                "them out."
            )
        if self.enable_expert_parallel and not whole and self.data_parallel_size > 1:
            raise ConfigError(
                "[config] --enable-expert-parallel divides experts over the ranks of an engine; "
                f"got --data-parallel-size {self.data_parallel_size}, --tensor-parallel-size 1. "
                "Leave --enable-expert-parallel out, so that each engine has all experts, or "
                "divide one engine: --tensor-parallel-size "
                f"{self.data_parallel_size} --enable-expert-parallel."
            )
        if self.distributed_executor_backend == "uni" and self.layout.size > 1:
            raise ConfigError(
                "[config] --distributed-executor-backend uni is one process; got "
                f"{self.layout.size} ranks. Leave it out."
            )
        self._check_nodes()

    def _check_nodes(self) -> None:
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(
                f"[config] --node-rank must be in 0..{self.nnodes - 1}, less than --nnodes; got "
                f"{self.node_rank}."
            )
        count = self.data_parallel_size if self.deals_engines else self.layout.size
        if count % self.nnodes:
            what = "engines" if self.data_parallel_size > 1 else "ranks (shards x stages)"
            raise ConfigError(
                f"[config] --nnodes must divide the {count} {what}; got {self.nnodes}. Give -tp "
                "or -pp, or -dp for engines (with --disaggregate all of them), so that each "
                "machine has as many."
            )
        if not 1 <= self.master_port <= 65535:
            raise ConfigError(
                f"[config] --master-port must be in 1..65535; got {self.master_port}."
            )
        if self.nnodes == 1:
            return
        if self.distributed_executor_backend in ("uni", "ray"):
            raise ConfigError(
                "[config] --nnodes starts machines one by one; got "
                f"--distributed-executor-backend {self.distributed_executor_backend} as well. "
                "Leave one out."
            )

    def _check_stages(self) -> None:
        stages, names = self.pipeline_parallel_size, ", ".join(get_args(Device))
        each = "the one stage" if stages == 1 else f"each of the {stages} stages"
        layers, devices = _parts(self.stage_layers), _parts(self.stage_devices)
        if layers and (len(layers) != stages or not all(map(_is_count, layers))):
            raise ConfigError(
                f"[config] --stage-layers must be a number of at least 1 for {each} "
                f"of --pipeline-parallel-size; got {self.stage_layers}."
            )
        if devices and (len(devices) != stages or not set(devices) <= set(get_args(Device))):
            raise ConfigError(
                f"[config] --stage-devices must be one of {names} for {each} "
                f"of --pipeline-parallel-size; got {self.stage_devices}."
            )
        memory = _parts(self.stage_memory)
        if memory and (len(memory) != stages or not all(map(_is_size, memory))):
            raise ConfigError(
                f"[config] --stage-memory must be bytes for {each} of "
                f"--pipeline-parallel-size; got {self.stage_memory}."
            )

    def _check_device_map(self) -> None:
        if self.device_map is None:
            if self.max_memory is not None:
                raise ConfigError(
                    f"[config] --max-memory needs --device-map auto; got {self.max_memory} alone. "
                    "Give both, or --memory."
                )
            return
        alone = {
            "tensor_parallel_size", "pipeline_parallel_size", "stage_layers", "stage_devices",
            "stage_memory", "data_parallel_size", "nnodes",
        }  # fmt: skip
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name in alone and value != setting.default:
                flag = "--" + setting.name.replace("_", "-")
                raise ConfigError(
                    "[config] --device-map auto chooses the stages of one engine on one machine; "
                    f"got {flag} {value} as well. Leave one out."
                )
        if self.distributed_executor_backend == "ray":
            raise ConfigError(
                "[config] --device-map auto places layers on devices of this machine; got "
                "--distributed-executor-backend ray as well. Leave one out."
            )
        if self.max_memory is None:
            return
        unknown = ", ".join(set(read_max_memory(self.max_memory)) - {"cpu", "reference"})
        if unknown or self.device != "auto":
            got = unknown or f"--device {self.device} as well"
            raise ConfigError(
                f"[config] --max-memory must name the devices, of cpu and reference; got {got}."
            )


def _parts(value: str | None) -> list[str]:
    return [] if value is None else [part.strip() for part in value.split(",")]


def _is_size(text: str) -> bool:
    try:
        return parse_count(text) > 0
    except ValueError:
        return False


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def read_max_memory(text: str) -> dict[str, int]:
    """Return the bytes of each device, in order.

    Args:
        text: Devices with sizes: ``cpu=2GiB,reference=1GiB`` or
            ``{"cpu": "2GiB", "reference": 1073741824}``.

    Raises:
        ConfigError: The text has neither form.
    """
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        pairs = [[part.strip() for part in item.split("=", 1)] for item in text.split(",")]
    found: dict[str, int] = {}
    try:
        for device, size in pairs:
            if not device or device in found:
                raise ValueError(device)
            found[device] = parse_count(str(size))
    except (TypeError, ValueError):
        found = {}
    if not found or min(found.values()) < 1:
        raise ConfigError(
            "[config] --max-memory must be devices, each once, with bytes, such as "
            f"cpu=2GiB,reference=1GiB; got {text!r:.80}."
        )
    return found
