"""Named result files: each rule of ``scripts/check`` fails where it should in a made-up history."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from benchmarks import check_results, results, wanted

CLAIMS = """\
[speed]
measures = ["engine"]
wanted."results > fast > ratio" = { at_least = 2 }

[speed_zen9]
wanted."results > fast > ratio" = { at_most = 2, times = "results > slow > ratio" }

[old]
measures = ["native"]
"""
RATIO = "results > fast > ratio"


class Repository:
    """A history of one commit to each path, with a page that names what is put into it."""

    def __init__(self, root):
        self.root = root
        (root / "benchmarks/results").mkdir(parents=True)
        (root / "docs").mkdir()
        self.write("README.md", "")
        self.write("benchmarks/claims.toml", CLAIMS)
        self.git("init", "--quiet")
        self.first = self.change("quire/engine/step.py")
        self.change("native/dot.cpp")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def git(self, *arguments):
        user = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *user, *arguments], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def change(self, path):
        """Commit a change of a path; return the short hash."""
        file = self.root / path
        self.write(path, (file.read_text() if file.exists() else "") + "x\n")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--no-verify", "-m", path)
        return self.git("rev-parse", "--short", "HEAD")

    def put(self, name="speed", *, ratio=3.0, page="docs/speed.md", **fields):
        """Write a result file that is in order but for ``fields``, and name it on a page."""
        document = {
            "name": name,
            "commit": self.first,
            "command": f"python benchmarks/{name}.py",
            **wanted.claim(name, self.root / "benchmarks/claims.toml"),
            "results": {"fast": {"ratio": ratio}, "slow": {"ratio": 1.0}},
            **fields,
        }
        self.write(f"benchmarks/results/{name}.json", json.dumps(document))
        self.write(page, f"Twice as fast (`benchmarks/results/{name}.json`).\n")

    def complaints(self):
        return check_results.check(self.root)[0]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(check_results, "MOST_COMMITS", 2)
    return Repository(tmp_path)


def rule(**fields):
    return {RATIO: {"at_least": 2, **fields}}


def test_a_file_in_order_passes(repository):
    repository.put()
    repository.put("speed_zen9", ratio=2.0)
    assert check_results.check(repository.root) == ([], [])


@pytest.mark.parametrize("page", ["README.md", "docs/speed.md"])
def test_a_number_that_is_not_as_wanted(repository, page):
    repository.put(ratio=1.9, page=page)
    (complaint,) = repository.complaints()
    assert f"speed.json: {RATIO} must be at least 2; got 1.9." in complaint


def test_a_number_of_times_another(repository):
    repository.put("speed_zen9", ratio=2.1)
    (complaint,) = repository.complaints()
    assert "must be at most 2 times results > slow > ratio; got 2.1." in complaint


def test_a_file_that_no_page_names_is_not_judged_but_for_its_commit(repository):
    """Five such files named commits that were in no history."""
    repository.put(ratio=1.0)
    repository.write("docs/speed.md", "Nothing, and `config.json`, `my_speed.json`.\n")
    assert repository.complaints() == []
    repository.put(ratio=1.0, commit="0000000")
    repository.write("docs/speed.md", "Nothing.\n")
    (complaint,) = repository.complaints()
    assert "speed.json must name commits of this history; got 0000000." in complaint


def test_a_miss_whose_reason_is_said_is_printed(repository):
    repository.put(ratio=1.9, wanted=rule(missed="a slow machine"))
    complaints, notes = check_results.check(repository.root)
    assert complaints == []
    assert notes == [f"speed.json misses {RATIO}, at least 2: a slow machine"]


def test_a_reason_that_is_not_needed(repository):
    repository.put(wanted=rule(missed="a slow machine"))
    (complaint,) = repository.complaints()
    assert "must have no missed, as it is at least 2; got 'a slow machine'" in complaint


def test_a_number_that_is_not_there_has_no_excuse(repository):
    repository.put(results={"fast": {}}, wanted=rule(missed="it was not measured"))
    (complaint,) = repository.complaints()
    assert "got no number there" in complaint


def test_a_path_that_does_not_lead_to_a_number(repository):
    repository.put(ratio={"median": 3.0})
    (complaint,) = repository.complaints()
    assert f"speed.json: [results] {RATIO} must lead to numbers; got {{'median': 3.0}}" in complaint


@pytest.mark.parametrize(
    "other", [{"wanted": rule(at_least=1)}, {"wanted": {}}, {"measures": ["kernels"]}]
)
def test_a_file_that_is_not_as_claimed(repository, other):
    repository.put(**other)
    (complaint,) = repository.complaints()
    assert "speed.json must have measures and wanted as in benchmarks/claims.toml" in complaint


def test_a_result_without_a_claim(repository):
    repository.put("unheard", measures=["engine"])
    (complaint,) = repository.complaints()
    assert "unheard.json must have a table in benchmarks/claims.toml" in complaint


def test_a_room_that_is_gone(repository):
    repository.put("old")
    repository.git("mv", "native", "quire/native")
    (complaint,) = repository.complaints()
    assert "old.json must measure rooms that exist; got native." in complaint


def test_a_commit_that_is_not_in_the_history(repository):
    main = repository.git("rev-parse", "--abbrev-ref", "HEAD")
    repository.git("checkout", "--quiet", "-b", "aside")
    lost = repository.change("quire/engine/step.py")
    repository.git("checkout", "--quiet", main)
    repository.put(commit=lost)
    (complaint,) = repository.complaints()
    assert f"must name commits of this history; got {lost}." in complaint
    assert "Run python benchmarks/speed.py again." in complaint


def test_each_run_of_a_file_is_looked_at(repository):
    repository.put()
    path = repository.root / "benchmarks/results/speed.json"
    document = json.loads(path.read_text())
    runs = {"a": {"commit": f"{document.pop('commit')}+"}, "b": {"commit": "1234567"}}
    path.write_text(json.dumps(document | {"runs": runs}))
    (complaint,) = repository.complaints()
    assert "got 1234567." in complaint


def test_a_file_without_a_commit(repository):
    repository.put()
    path = repository.root / "benchmarks/results/speed.json"
    document = json.loads(path.read_text())
    del document["commit"]
    path.write_text(json.dumps(document))
    (complaint,) = repository.complaints()
    assert "must name commits of this history; got none." in complaint


def test_a_file_too_old_for_the_rooms_it_measures(repository):
    repository.put()
    repository.put("old", page="docs/old.md")
    for _ in range(3):
        repository.change("quire/engine/step.py")
    (complaint,) = repository.complaints()
    assert "speed.json must be at most 2 commits of engine old; got 3 since" in complaint
    repository.put(kept="the machine is gone")
    assert check_results.check(repository.root) == (
        [], ["speed.json is kept: the machine is gone"]
    )  # fmt: skip


def test_commits_of_another_branch_count_from_where_it_is_merged(repository):
    main = repository.git("rev-parse", "--abbrev-ref", "HEAD")
    repository.git("checkout", "--quiet", "-b", "aside")
    for _ in range(3):
        repository.change("quire/engine/other.py")
    repository.git("checkout", "--quiet", main)
    before = repository.change("quire/engine/step.py")
    repository.git("merge", "--quiet", "--no-ff", "--no-edit", "aside")
    repository.put(commit=before)
    (complaint,) = repository.complaints()
    assert "got 3 since" in complaint


def test_kept_before_it_is_old(repository):
    repository.put(kept="it is dear")
    (complaint,) = repository.complaints()
    assert "must not say why it is kept before it is 2 commits old; got 0." in complaint


def test_a_file_that_is_named_and_not_there(repository):
    repository.write(
        "docs/a.md", "See `benchmarks/results/gone.json`, `benchmarks/results/*.json`."
    )
    (complaint,) = repository.complaints()
    assert (
        "docs/a.md must name result files that are there; got benchmarks/results/gone" in complaint
    )


def test_all_offenders_are_listed_at_once(repository):
    repository.put(ratio=1.0, commit="1234567")
    repository.put("old", page="docs/old.md", commit="7654321")
    repository.write("docs/a.md", "`benchmarks/results/gone.json`")
    assert len(repository.complaints()) == 4


def test_a_shallow_history_is_said_and_numbers_are_judged(repository, tmp_path):
    """``make check`` is for those, too, who took the last commit alone."""
    repository.put(ratio=1.0)
    repository.change("native/dot.cpp")
    clone = tmp_path / "clone"
    repository.git("clone", "--quiet", "--depth", "1", f"file://{repository.root}", str(clone))
    (complaint,), notes = check_results.check(clone)
    assert "ratio" in complaint
    assert "got a shallow clone. Run git fetch --unshallow." in notes[0]


def test_no_history_at_all(repository, tmp_path, monkeypatch):
    copy = shutil.copytree(repository.root, tmp_path / "copy", ignore=lambda *_: [".git"])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    _, notes = check_results.check(copy)
    assert "the git history must be readable" in notes[0] and "Run this in a clone." in notes[0]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a > b", [1.5]),
        ("a > *", [1.5, 1.0]),
        ("rows > kind=x > n", [1.0, 3.0]),
        ("rows > kind=x > size=2 > n", [3.0]),
        ("rows", [3.0]),
        ("rows > kind=z > n", []),
        ("K=4 > n", [9.0]),
    ],
)
def test_paths(path, found):
    document = {
        "a": {"b": 1.5, "c": True},
        "rows": [
            {"kind": "x", "size": 1, "n": 1},
            {"kind": "y", "size": 2, "n": 2},
            {"kind": "x", "size": 2, "n": 3},
        ],
        "K=4": {"n": 9},
    }
    assert wanted.numbers(document, path) == found


@pytest.mark.parametrize(
    "fields",
    [{}, {"at_least": 1, "at_most": 2}, {"at_least": 1, "why": "a word without use"}],
)
def test_a_rule_without_one_direction_is_refused(fields):
    with pytest.raises(ValueError, match="must have at_least or at_most"):
        list(wanted.misses({"n": 1, "wanted": {"n": fields}}))


def test_every_result_has_a_claim():
    without = [path.name for path in results.RESULTS.glob("*.json") if not wanted.claim(path.stem)]
    assert not without, f"[results] add them to benchmarks/claims.toml: {without}"


def test_what_is_written_has_its_claim_and_no_old_excuse(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    claim = wanted.claim("engine_modes")
    written = json.loads(results.write("engine_modes", {}).read_text())
    assert (written["measures"], written["wanted"]) == (claim["measures"], claim["wanted"])
    path = results.merge("compare_x", {"a": {"b": {}}}, run={})
    document = json.loads(path.read_text())
    document["kept"] = "old"
    document["wanted"] = {"results > a": {"at_least": 1, "missed": "old"}}
    path.write_text(json.dumps(document))
    merged = json.loads(results.merge("compare_x", {"a": {"b": {}}}, run={}).read_text())
    assert "kept" not in merged and merged["wanted"] == wanted.claim("compare_x")["wanted"]
