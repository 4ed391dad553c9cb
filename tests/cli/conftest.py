"""Fixtures of the command-line tests: the program and the three checkpoints that `make models` made."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("smollm2-bf16", "smollm2-fp8-32x32", "smollm2-mxfp4")


@pytest.fixture(scope="session")
def program():
    path = ROOT / "build" / "deepinfer"
    assert path.exists(), f"{path} is missing: run make"
    return str(path)


@pytest.fixture(scope="session")
def models():
    folder = ROOT / "build" / "models"
    for name in NAMES:
        assert (folder / name / "config.json").exists(), f"{folder / name} is missing: run make models"
    return {name: str(folder / name) for name in NAMES}


@pytest.fixture(scope="session")
def deepinfer(program):
    """Runs the program; returns the finished process with text output."""

    def run(*args, env=None, **keywords):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
        environment.update(env or {})
        keywords.setdefault("timeout", 300)
        return subprocess.run([program, *args], capture_output=True, text=True, env=environment, **keywords)

    return run
