"""The program on CPUs that this machine is not, as qemu-user models them: it starts, chooses the instruction
set that the CPU has, refuses the others by name, and gives the same bits. qemu 7.2 has no AVX-512."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# From the first x86-64 on; the three in the middle have part of what avx2 needs. The last two have AVX-512 by
# name, which qemu leaves out.
MODELS = {
    "Opteron_G1": "ref",
    "Nehalem": "ref",
    "SandyBridge": "ref",
    "IvyBridge": "ref",
    "Opteron_G5": "ref",
    "Haswell": "avx2",
    "EPYC": "avx2",
    "Skylake-Server": "avx2",
    "Cooperlake": "avx2",
}


def on(model, program, *args, isa=None):
    """Runs a program of build/; its error output without qemu's own remarks."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    if isa:
        environment["DEEPINFER_ISA"] = isa
    done = subprocess.run(
        ["qemu-x86_64", "-cpu", model, ROOT / "build" / program, *args],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("qemu-x86_64: warning: TCG")]
    return done.returncode, done.stdout, lines


@pytest.mark.parametrize("model", MODELS)
def test_case_043_starts_and_chooses_what_the_cpu_has(model):
    code, out, errors = on(model, "deepinfer", "info", "--json")
    assert code == 0 and not errors, errors
    info = json.loads(out)
    assert info["isa"] == MODELS[model]
    usable = {isa["name"] for isa in info["isas"] if isa["usable"]}
    assert usable == {"ref", MODELS[model]}


@pytest.mark.parametrize("model", MODELS)
def test_case_043_asking_for_more_is_an_error_and_no_signal(model):
    for isa in ("avx512bf16", "avx2"):
        if isa == MODELS[model]:
            continue
        code, out, errors = on(model, "deepinfer", "info", isa=isa)
        assert code == 4 and not out
        assert len(errors) == 1 and errors[0].startswith(f"deepinfer: DEEPINFER_ISA: {isa} cannot run here: "), errors


@pytest.mark.parametrize("model", ["Nehalem", "Haswell"])
def test_digests_are_those_of_the_contract(model):
    code, out, errors = on(model, "arithmetic_test", "--gtest_filter=*digests*")
    assert code == 0, out
    assert "1 test from 1 test suite ran" in out and "PASSED" in out
    tested = 3 - (out + "\n".join(errors)).count("NOT TESTED HERE")
    assert tested == len({"ref", MODELS[model]})
