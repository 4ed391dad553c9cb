"""Every family is read bit by bit, or refused for the right reason (families.py, giants.py)."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]


def values_in(folder, out, segments=None):
    """What zoo_values says, with the values of each weight."""
    out.mkdir()
    arguments = [ROOT / "build" / "zoo_values", folder, out] + ([segments] if segments else [])
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for weight in found["weights"]:
        weight["values"] = np.fromfile(weight["file"], np.float32)
    return found


def bits(values):
    """f32 bits with one zero: a sum that starts from +0 has no -0."""
    return (np.asarray(values, np.float32) + np.float32(0)).view(np.uint32)


def check(tiny, found):
    assert {w["name"] for w in found["weights"]} == set(tiny.expected)
    for weight in found["weights"]:
        expected = tiny.expected[weight["name"]]
        assert weight["format"] == expected.format, weight["name"]
        assert weight["shape"] == list(expected.values.shape), weight["name"]
        assert weight["gate_up"] == expected.gate_up, weight["name"]
        assert expected.cannot_run in weight["cannot_run"] and bool(expected.cannot_run) == bool(weight["cannot_run"])
        if weight["cannot_run"] and weight["format"] != "nvfp4":
            continue
        assert np.array_equal(bits(weight["values"]), bits(expected.values).ravel()), weight["name"]
    assert set(found["problems"]) == set(tiny.problems)
    for tensor, words in tiny.problems.items():
        assert words in found["problems"][tensor]


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, tmp_path):
    tiny = FAMILIES[name]()
    tiny.write(tmp_path / "model")
    check(tiny, values_in(tmp_path / "model", tmp_path / "out", tiny.segments))


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_and_scales_in_different_files(name, tmp_path):
    tiny = FAMILIES[name]()
    tiny.write(tmp_path / "model", num_shards=3)
    check(tiny, values_in(tmp_path / "model", tmp_path / "out", tiny.segments))
