"""The tables of mutants: reading them, and writing down what killed each."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small fault.

    Attributes:
        name: What is wrong, in a few words with hyphens.
        file: Where, below the root of the tree.
        old: What stands there once.
        new: What the fault makes of it.
        killed_by: A test that fails on it; a file, or nothing, until one is recorded.
        rooms: Tests that look at it, where imports do not say it: files of ``native/``.
        needs: A package without which the tests that see it skip.
    """

    name: str
    file: str
    old: str
    new: str
    killed_by: str = ""
    rooms: tuple[str, ...] = ()
    needs: str = ""

    @property
    def is_native(self) -> bool:
        """Whether the native module has to be built for it."""
        return self.file.startswith("native/")

    def applied(self, text: str) -> str:
        """Return the file's text with the fault.

        Raises:
            ValueError: What it changes is not there, or more than once.
        """
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} must have its old text once; got {count}")
        return text.replace(self.old, self.new)


def read_mutants() -> dict[str, Mutant]:
    """Return the mutants of all tables by name."""
    found: dict[str, Mutant] = {}
    for path in sorted(TABLES.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            mutant = Mutant(**{**entry, "rooms": tuple(entry.get("rooms", ()))})
            if mutant.name in found:
                raise ValueError(f"{path.name}: two mutants are named {mutant.name}")
            found[mutant.name] = mutant
    return found


def record(killers: dict[str, str]) -> None:
    """Write into the tables which test kills each mutant, by its name."""
    for path in TABLES.glob("*.toml"):
        parts = path.read_text().split("[[mutant]]\n")
        for index, part in enumerate(parts[1:], start=1):
            entry = tomllib.loads(part)
            killer = killers.get(entry["name"], entry.get("killed_by"))
            if killer != entry.get("killed_by"):
                lines = [line for line in part.rstrip().split("\n") if line[:9] != "killed_by"]
                after = part[len(part.rstrip()) :]
                parts[index] = "\n".join([*lines, f"killed_by = {json.dumps(killer)}"]) + after
        path.write_text("[[mutant]]\n".join(parts))
