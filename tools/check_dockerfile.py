"""``scripts/check_dockerfile``: run a Dockerfile's steps in clean roots and use what they leave.

Docker needs a daemon that few build machines let one have; what it does with our Dockerfile is
little: a root of Debian for each stage, commands in it, files copied. Here the roots are
debootstrap's, and each command has mounts and processes of its own (``unshare``). The finished
image is started as ``docker run`` would start it, in a network of its own: its health check must
succeed, a question be answered, SIGTERM end it with 0. It holds the core install to its limits.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGE = "debian:bookworm-slim"
#: Its smallest variant, from its own mirror, is what that image is made of.
BOOTSTRAP = ["debootstrap", "--variant=minbase", "bookworm"]
#: How this machine reaches package registries; a machine with Docker has its own ways.
RESOLVER = ["/etc/resolv.conf", "/etc/hosts"]
CERTIFICATES, PLACE = Path("/etc/ssl/certs/ca-certificates.crt"), "/run/certificates.crt"
NETWORK = dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE"), PLACE) if CERTIFICATES.exists() else {}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNTS = {"proc": "-t proc proc", "dev": "--rbind /dev", "tmp": "-t tmpfs tmpfs"}
MAX_INSTALL_MB = 200
QUESTION, ANSWER = "What is the capital of France?", "Paris"
USE = """
ip link set lo up
{serve} & server=$!
for attempt in $(seq 240); do {health} 2>/dev/null && break; kill -0 $server; sleep 0.5; done
{health}
said=$({ask})
echo "$said"
[[ $said == *{answer}* ]]
kill -TERM $server
wait $server
"""


@dataclass
class Stage:
    """A stage while it is built.

    Attributes:
        root: Its file system.
        env, folder, user: Of the commands that follow.
        healthcheck, entrypoint, command: Argument lists.
    """

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root"})
    folder: str = "/"
    user: str = "root"
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def enter(self, arguments: list[str]) -> list[str]:
        """Return the command that runs ``arguments`` in this root, as its user."""
        env = [f"{name}={value}" for name, value in {**NETWORK, **self.env}.items()]
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(arguments)}"
        root = ["chroot", f"--userspec={self.user}", str(self.root)]
        return [*root, "env", "-i", *env, "sh", "-c", inside]

    def run(self, script: str, *, network: bool = True) -> None:
        """Run a script of the host where this root has its own mounts and processes."""
        mounts = "".join(
            f"mount {how} {shlex.quote(str(self.root / to))}\n" for to, how in MOUNTS.items()
        )
        apart = ["--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        subprocess.run(["unshare", *apart, "bash", "-ec", mounts + script], check=True)


def read_instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: name and the rest of its line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name.upper(), rest) for name, _, rest in (line.partition(" ") for line in lines)]


class Build:
    """Runs instructions, one root for each stage, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stages: dict[str, Stage] = {}
        self._base = folder / "base"

    def build(self, instructions: list[tuple[str, str]]) -> Stage:
        """Run them all; return the last stage."""
        subprocess.run([*BOOTSTRAP, self._base], check=True, stdout=subprocess.DEVNULL)
        stage = None
        for name, rest in instructions:
            print(f"{name} {rest}", flush=True)
            if name == "FROM":
                stage = self._begin(rest)
            else:
                assert stage is not None, "FROM must come first"
                getattr(self, f"_{name.lower()}")(stage, rest)
        assert stage is not None, "a Dockerfile has a FROM"
        return stage

    def _begin(self, rest: str) -> Stage:
        image, *named = rest.split()
        assert image == IMAGE, f"{IMAGE} is the base that is known here; got {image}"
        name = named[1] if named else str(len(self._stages))
        root = self._folder / f"stage-{name}"
        subprocess.run(["cp", "-a", self._base, root], check=True)
        for path in RESOLVER:
            shutil.copyfile(path, root / path.lstrip("/"))
        if CERTIFICATES.exists():
            shutil.copyfile(CERTIFICATES, root / PLACE.lstrip("/"))
        self._stages[name] = Stage(root)
        return self._stages[name]

    def _run(self, stage: Stage, rest: str) -> None:
        stage.run(shlex.join(stage.enter(["sh", "-ec", rest])))

    def _copy(self, stage: Stage, rest: str) -> None:
        *flags, source, target = rest.split()
        to = stage.root / (Path(stage.folder) / target).relative_to("/")
        if flags:
            other = self._stages[flags[0].removeprefix("--from=")]
            subprocess.run(["cp", "-a", other.root / source.lstrip("/"), to], check=True)
            return
        assert source == ".", "the whole context is copied"
        for path in context():
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, to / path)

    def _workdir(self, stage: Stage, rest: str) -> None:
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _env(self, stage: Stage, rest: str) -> None:
        name, _, value = rest.partition("=")
        stage.env[name] = value

    def _user(self, stage: Stage, rest: str) -> None:
        stage.user, stage.env["HOME"] = rest, f"/home/{rest}"

    def _healthcheck(self, stage: Stage, rest: str) -> None:
        stage.healthcheck = json.loads(rest.partition(" CMD ")[2])

    def _entrypoint(self, stage: Stage, rest: str) -> None:
        stage.entrypoint = json.loads(rest)

    def _cmd(self, stage: Stage, rest: str) -> None:
        stage.command = json.loads(rest)

    def _expose(self, stage: Stage, rest: str) -> None:
        """Nothing to do: the image is used in a network of its own."""

    def _stopsignal(self, stage: Stage, rest: str) -> None:
        assert rest == "SIGTERM", "the signal that is sent here"


def context() -> list[str]:
    """Return the files that a build sees: what git tracks or would, less ``.dockerignore``."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ignored = tuple(f"{line}/" for line in (ROOT / ".dockerignore").read_text().split())
    files = listed.stdout.splitlines()
    return [path for path in files if not path.startswith(ignored) and (ROOT / path).is_file()]


def use(stage: Stage) -> None:
    """Start the image, ask it, end it."""
    assert stage.user != "root" and stage.healthcheck, "an unprivileged user, a health check"
    steps = {
        "serve": [*stage.entrypoint, *stage.command],
        "health": stage.healthcheck,
        "ask": ["quire", "ask", QUESTION],
    }
    commands = {name: shlex.join(stage.enter(arguments)) for name, arguments in steps.items()}
    stage.run(USE.format(**commands, answer=ANSWER), network=False)


def check_install(stage: Stage) -> None:
    """Hold the install to its limits: small, without torch, and no compiler is there."""
    counted = subprocess.run(
        ["du", "-sm", stage.root / "opt/quire"], capture_output=True, text=True, check=True
    )
    size = int(counted.stdout.split()[0])
    print(f"install: {size} MB", flush=True)
    assert size <= MAX_INSTALL_MB, f"the install must take at most {MAX_INSTALL_MB} MB"
    for program in ("cc", "c++", "g++", "gcc", "make"):
        assert not (stage.root / "usr/bin" / program).exists(), program
    assert not list((stage.root / "opt/quire").glob("lib/*/site-packages/torch"))


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("[check_dockerfile] roots need the rights of root; run it as root.")
    with tempfile.TemporaryDirectory(prefix="quire-dockerfile-") as folder:
        build = Build(Path(folder))
        image = build.build(read_instructions((ROOT / "Dockerfile").read_text()))
        check_install(image)
        use(image)
    print("check_dockerfile: all good")


if __name__ == "__main__":
    main()
