"""Hosted CI, publishing, and the files that hosts read: their form, and what they name."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from targets import COMMANDS

import pysampler

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
URLS = PROJECT["project"]["urls"]
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
JOBS = {
    (workflow, name): job
    for workflow, text in WORKFLOWS.items()
    for name, job in yaml.safe_load(text)["jobs"].items()
}
PYTHONS = [
    one.rpartition(" ")[2]
    for one in PROJECT["project"]["classifiers"]
    if one.startswith("Programming Language :: Python :: 3.")
]


def made(text):
    """Return the make targets in lines of shell."""
    return set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE))


def targets(workflow):
    """Return the make targets of a workflow's jobs."""
    jobs = [job for (name, _), job in JOBS.items() if name == workflow]
    return set().union(*(made(step.get("run", "")) for job in jobs for step in job["steps"]))


def test_ci_nightly_and_wheels_workflows_exist():
    assert {"ci", "nightly", "wheels"} <= WORKFLOWS.keys()


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_make_existing_targets(workflow):
    there = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets(workflow)
    assert targets(workflow) - there == set()


def test_hosted_ci_runs_the_checks_of_local_ci():
    clones = [one.split()[0] for one in COMMANDS]
    at_home = made((ROOT / ".ci/run").read_text()).union(clones)
    assert {"lint", "test", "test-all", "wheels"} <= at_home
    parts = {"test-python", "test-native"}  # the parts of test-all, which includes test
    [named] = re.findall(r"run: python tests/targets.py (.*)", WORKFLOWS["ci"])
    assert at_home - {"test", "test-all"} | parts <= targets("ci").union(named.split())


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_are_read_only_and_cancel_older_runs(workflow):
    settings = yaml.safe_load(WORKFLOWS[workflow])
    assert settings["permissions"] == {"contents": "read"}
    assert "cancel-in-progress" in settings["concurrency"]


@pytest.mark.parametrize("name", JOBS, ids="-".join)
def test_jobs_have_timeouts_and_pinned_actions(name):
    job = JOBS[name]
    assert 0 < job["timeout-minutes"] <= 180
    assert ("permissions" in job) == (name in {("wheels", "provenance"), ("wheels", "publish")})
    for step in job["steps"]:
        tag = r"v\d+(\.\d+)*|release/v\d+"
        assert re.fullmatch(rf"[\w-]+/[\w-]+@({tag}|[0-9a-f]{{40}})", step.get("uses", "a/b@v1"))


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_actions_pinned_by_commit_name_their_tag(workflow):
    pinned = re.findall(r"uses: .*@[0-9a-f]{40}(.*)", WORKFLOWS[workflow])
    assert all(re.fullmatch(r" # (release/)?v\d+(\.\d+)*", comment) for comment in pinned)


def test_publishing_needs_a_tag_and_all_wheel_jobs():
    job = JOBS["wheels", "publish"]
    assert "startsWith(github.ref, 'refs/tags/')" in job["if"]
    assert set(job["needs"]) == {name for workflow, name in JOBS if workflow == "wheels"} - {
        "publish"
    }
    assert job["environment"]["name"] == "pypi"
    assert job["permissions"] == {"id-token": "write"}
    # PyPI refuses other files, such as the SBOM.
    assert job["steps"][0]["with"]["pattern"] == "dist-*"


def test_provenance_is_signed_for_every_file_before_publishing():
    job = JOBS["wheels", "provenance"]
    assert job["if"] == JOBS["wheels", "publish"]["if"]
    assert job["permissions"] == {"id-token": "write", "attestations": "write"}
    download, attest = job["steps"]
    assert "pattern" not in download["with"]
    assert attest["with"]["subject-path"] == f"{download['with']['path']}/*"


def test_each_supported_python_is_tested_and_gets_a_wheel():
    assert len(PYTHONS) > 1
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + PYTHONS[0].replace(".", "")
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    free_threaded = ["cp313t-*", "cp314t-*"]
    assert built == [*(f"cp{one.replace('.', '')}-*" for one in PYTHONS), *free_threaded]
    assert JOBS["ci", "tests"]["strategy"]["matrix"]["python"] == PYTHONS
    (set_up,) = (
        one["with"] for one in JOBS["ci", "wheels"]["steps"] if "python-version" in str(one)
    )
    assert set_up["python-version"].split() == PYTHONS


def test_the_version_is_written_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    (source,) = (one for one in PROJECT["tool"]["dynamic-metadata"] if one["field"] == "version")
    assert source["input"] == "pysampler/__init__.py"
    assert not re.search(r"project\([^)]*VERSION", (ROOT / "CMakeLists.txt").read_text())
    files = [ROOT / "pyproject.toml", ROOT / "CMakeLists.txt", *(ROOT / "csrc").rglob("*.h")]
    files += [*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "pysampler").rglob("*.py")]
    version = f'"{pysampler.__version__}"'
    with_it = [path.relative_to(ROOT) for path in files if version in path.read_text()]
    assert with_it == [Path("pysampler/__init__.py")]


@pytest.mark.parametrize(("tag", "code"), [("v{}", 0), ("v{}.post1", 1), ("v9", 1)])
def test_a_tag_of_another_version_fails_the_release(tag, code):
    (step,) = (one for one in JOBS["wheels", "sdist"]["steps"] if "GITHUB_REF_NAME" in str(one))
    name = tag.format(pysampler.__version__)
    environment = {**os.environ, "GITHUB_REF_NAME": name}
    done = subprocess.run(["bash", "-euc", step["run"]], cwd=ROOT, env=environment, check=False)
    assert done.returncode == code


@pytest.mark.parametrize(("owner", "code"), [("OWNER", 1), ("someone", 0)])
def test_a_release_needs_the_address_of_the_repository(owner, code, tmp_path):
    for name in ("pyproject.toml", "CITATION.cff"):
        url = f"https://github.com/{owner}/pysampler"
        (tmp_path / name).write_text((ROOT / name).read_text().replace(URLS["Source"], url))
    (step,) = (one for one in JOBS["wheels", "sdist"]["steps"] if "OWNER" in str(one))
    assert "refs/tags/" in step["if"]
    done = subprocess.run(["bash", "-euc", step["run"]], cwd=tmp_path, check=False)
    assert done.returncode == code


def test_project_urls_are_of_one_repository():
    assert URLS.keys() == {"Documentation", "Source", "Changelog", "Issues"}
    assert all(URLS[name].startswith(URLS["Source"]) for name in ("Changelog", "Issues"))


def test_citation_names_the_version_authors_and_addresses():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title"} <= citation.keys()
    assert citation["version"] == pysampler.__version__
    assert citation["authors"] == PROJECT["project"]["authors"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert (citation["repository-code"], citation["url"]) == (URLS["Source"], URLS["Documentation"])


def test_hooks_run_the_commands_of_make_lint():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    entries = {hook["id"]: hook["entry"].removesuffix(" --force-exclude") for hook in repo["hooks"]}
    assert entries.pop("lint") == "make lint"
    assert len(entries) == 3
    for entry in entries.values():
        assert f"\t{entry} " in recipe


def test_read_the_docs_installs_the_group_of_make_docs():
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert settings["sphinx"] == {"configuration": "docs/conf.py", "fail_on_warning": True}
    assert settings["build"]["tools"]["python"] in PYTHONS
    *_, install = settings["build"]["jobs"]["install"]
    assert install.endswith(" --group docs .")
    assert "docs" in PROJECT["dependency-groups"]


def test_dependabot_opens_one_pull_request_a_month_for_each_ecosystem():
    settings = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    assert settings["version"] == 2
    assert {one["package-ecosystem"] for one in settings["updates"]} == {"pip", "github-actions"}
    for update in settings["updates"]:
        assert update["schedule"] == {"interval": "monthly"}
        (group,) = update["groups"].values()
        assert group == {"patterns": ["*"]}


@pytest.mark.slow
def test_a_build_without_a_compiler_names_the_packages(tmp_path):
    """Once a compiler is there, the same build folder works."""
    cmake, ninja = (Path(sys.executable).parent / name for name in ("cmake", "ninja"))
    if not (cmake.exists() and ninja.exists()):
        pytest.skip("cmake or ninja is not installed beside this Python")
    command = [str(cmake), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", str(ROOT)]
    command += ["-B", str(tmp_path / "build"), "-DPYSAMPLER_BUILD_MODULE=OFF"]
    environment = {name: text for name, text in os.environ.items() if name != "CXX"}
    empty = {**environment, "PATH": str(tmp_path)}
    failed = subprocess.run(command, env=empty, capture_output=True, text=True, timeout=60)
    assert failed.returncode != 0
    assert "apt install g++" in " ".join(failed.stderr.split())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
