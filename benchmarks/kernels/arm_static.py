"""What the inner loops of the ARM kernels cost by a static model; nothing here was run on hardware.

The loops of the objects that ``scripts/check_arm`` compiled are found in their disassembly, counted
and given to llvm-mca, which has the pipelines of named processors: it assumes that every load
comes from L1 and every branch is foreseen. Rates are per cycle of one core.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import results

OBJECTS = Path("build/arm/module/CMakeFiles")
ITERATIONS = 200
#: Bytes, or floats, that one instruction multiplies and adds; by the beginning of its name.
PRODUCTS = {"sdot": 16, "usdot": 16, "smull": 8, "smlal": 8, "fmla": 4, "fmul": 0}
#: Processors whose model is asked, by the instruction set they would use.
PROCESSORS = {
    "neon": ["cortex-a53", "cortex-a72"],
    "neon_dotprod": ["neoverse-n1"],  # the Cortex-A76 of servers, which has no model of its own
    "neon_i8mm": ["neoverse-v1", "neoverse-n2", "neoverse-v2"],
}


@dataclass(frozen=True, slots=True)
class Tile:
    """An instance of a micro-kernel.

    Attributes:
        name: What it multiplies, for people.
        source: The file in native/cpu.
        symbol: What its demangled name contains, ``ISA::`` left out.
        rows: Rows of activations.
        bits: Of a weight in memory.
        multiplies: Names of the instructions that do the work.
    """

    name: str
    source: str
    symbol: str
    rows: int
    bits: int
    multiplies: tuple[str, ...] = ("sdot", "usdot", "smull", "smlal")


def tiles(isa: str) -> list[Tile]:
    """Return those worth a look: one row, and as many as there are registers for."""
    most = 4 if isa == "neon" else 6
    quantized, floats, few = "linear_quantized", ("fmla",), "tile<AskingCodes"
    return [
        Tile("4 bits, 1 row", quantized, f"{few}<PackedCodes<4>>, 1, 1>", 1, 4),
        Tile("6 bits in groups of 16, 1 row", quantized, f"{few}<PackedCodes<6>>, 2, 1>", 1, 6),
        Tile("8 bits, 1 row", quantized, f"{few}<ByteCodes<2>>, 1, 1>", 1, 8),
        Tile(f"4 bits, {most} rows", quantized, f"tile<ByteCodes<0>, 1, {most}>", most, 4),
        Tile(f"8 bits, {most} rows", quantized, f"tile<ByteCodes<2>, 1, {most}>", most, 8),
        Tile("bfloat16, 1 row", "linear", "tile<PairFormat, 1>", 1, 16, floats),
        Tile("bfloat16, 6 rows", "linear", "tile<PairFormat, 6>", 6, 16, floats),
        Tile("float32, 6 rows", "linear", "tile<FloatFormat<float>, 6>", 6, 32, floats),
    ]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a disassembly."""

    address: int
    name: str
    operands: str

    @property
    def target(self) -> int | None:
        """Where it branches to, if it does."""
        branches = self.name.startswith(("b.", "cb", "tb")) or self.name == "b"
        found = re.search(r"\b([0-9a-f]+) <", self.operands)
        return int(found[1], 16) if branches and found else None


def disassemble(path: Path) -> dict[str, list[Instruction]]:
    """Return demangled names, short, to their instructions."""
    command = ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", "-C", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions: dict[str, list[Instruction]] = {}
    lines: list[Instruction] = []
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]{16} <(.*)>:$", line):
            name = re.sub(r"quire::neon\w*::|\(quire::\w+::\w+\)|\(\w+\)(?=\d)", "", head[1])
            lines = functions.setdefault(name.replace(" >", ">"), [])
        elif found := re.match(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)$", line):
            lines.append(Instruction(int(found[1], 16), found[2], found[3].split("//")[0].strip()))
    return functions


def inner_loop(body: list[Instruction], multiplies: tuple[str, ...]) -> list[Instruction]:
    """Return the smallest loop with the most products, without what its branches skip."""

    def products(loop: list[Instruction]) -> int:
        return sum(product_count(line, multiplies) for line in loop)

    loops = [
        [line for line in body if end.target <= line.address <= end.address]
        for end in body
        if end.target is not None and end.target <= end.address
    ]
    loop = max(loops, key=lambda lines: (products(lines), -len(lines)))
    path, skip_to = [], 0
    for line in loop:
        if line.address < skip_to:
            continue
        path.append(line)
        # Forward: tests for what few matrices have, such as offsets.
        if line.target is not None and line.address < line.target <= loop[-1].address:
            skip_to = line.target
    return path


def product_count(line: Instruction, multiplies: tuple[str, ...]) -> int:
    """Return how many products the instruction adds up, if it is one of ``multiplies``."""
    if not line.name.startswith(multiplies):
        return 0
    return next(count for name, count in PRODUCTS.items() if line.name.startswith(name))


def cycles(loop: list[Instruction], processor: str, mca: str) -> float:
    """Return llvm-mca's cycles for one turn of the loop."""
    text = "\n".join(
        f"{line.name} {line.operands}" if line.target is None else "nop" for line in loop
    )
    attributes = "-mattr=+dotprod,+i8mm"
    command = [mca, "-mtriple=aarch64", f"-mcpu={processor}", attributes, "-json"]
    command.append(f"-iterations={ITERATIONS}")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)["CodeRegions"][0]["SummaryView"]
    return float(summary["TotalCycles"]) / ITERATIONS


def examine(tile: Tile, isa: str, mca: str) -> dict[str, Any]:
    """Return counts of the tile's loop, and rates by processor."""
    path = OBJECTS / f"kernels_{isa}.dir/native/cpu/{tile.source}.cpp.o"
    body = next(b for name, b in disassemble(path).items() if tile.symbol in name)
    loop = inner_loop(body, tile.multiplies)
    products = sum(product_count(line, tile.multiplies) for line in loop)
    weight_bytes = products / tile.rows * tile.bits / 8
    spilled = [line for line in loop if re.match(r"[qv]", line.operands) and "[sp" in line.operands]
    models = {}
    for processor in PROCESSORS[isa]:
        turn = cycles(loop, processor, mca)
        models[processor] = {
            "cycles": round(turn, 1),
            "products_per_cycle": round(products / turn, 1),
            "weight_bytes_per_cycle": round(weight_bytes / turn, 2),
        }
    return {
        **{key: value for key, value in asdict(tile).items() if key in ("rows", "bits")},
        "instructions": len(loop),
        "products": products,
        "products_per_instruction": round(products / len(loop), 2),
        "registers_spilled": len(spilled),
        "modelled": models,
    }


def main() -> int:
    """Examine all tiles and write ``benchmarks/results/arm_static.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mca", default="llvm-mca-22", help="the llvm-mca to ask")
    parser.add_argument("--no-result", action="store_true", help="print only")
    arguments = parser.parse_args()
    for program in (arguments.mca, "aarch64-linux-gnu-objdump"):
        if not shutil.which(program):
            parser.error(f"{program} is not installed; Debian has it in llvm-22 and binutils.")
    found = {
        isa: {tile.name: examine(tile, isa, arguments.mca) for tile in tiles(isa)}
        for isa in PROCESSORS
    }
    for isa, by_tile in found.items():
        for name, entry in by_tile.items():
            rates = {p: m["products_per_cycle"] for p, m in entry["modelled"].items()}
            print(f"{isa:13} {name:30} {entry['products_per_instruction']:5} a instruction", rates)
    if not arguments.no_result:
        version = subprocess.run([arguments.mca, "--version"], capture_output=True, text=True)
        lines = [line.strip() for line in version.stdout.splitlines() if "version" in line]
        kind = "modelled, not measured: counts of instructions and llvm-mca's pipelines; L1 only"
        results.write("arm_static", found, kind=kind, model=lines[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
