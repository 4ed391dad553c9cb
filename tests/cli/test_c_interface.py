"""What the shared library shows of the C interface."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_declared_function_is_shown_with_a_version():
    header = ROOT / "include" / "deepinfer" / "deepinfer.h"
    words = ["cpp", "-P", f"-I{ROOT / 'include'}", header]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    declared = set(re.findall(r"\b(deepinfer_\w+)\(", text))
    words = ["nm", "-D", "--defined-only", ROOT / "build" / "libdeepinfer.so"]
    symbols = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    shown = dict(re.findall(r" T (deepinfer_\w+)@@(\w+)", symbols))
    assert len(declared) > 40
    assert shown.keys() == declared
    assert set(shown.values()) == {"DEEPINFER_0"}
