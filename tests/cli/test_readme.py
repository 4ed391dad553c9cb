"""What the README shows is run as it stands there."""

import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_commands(models, tmp_path):
    commands = re.findall(r"^    \$ (build/deepinfer .*)$", README, re.M)
    assert len(commands) >= 7
    for command in commands:
        words = shlex.split(command.replace("/tmp/", f"{tmp_path}/"))
        if words[1] == "bench":
            words += ["--seconds", "0.05"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (command, done.stderr)
    # the answer that is printed under the command
    answer = README.split('--prompt "What is the capital of France?"\n    ')[1].splitlines()[0]
    words = shlex.split(commands[2].replace("/tmp/", f"{tmp_path}/"))
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip() == answer


def test_cpp_example_compiles(tmp_path):
    example = re.search(r"```cpp\n(.*?)```", README, re.S).group(1)
    headers = ["checkpoint", "linear", "runtime", "weight", "weight_map"]
    source = "".join(f'#include "deepinfer/{name}.h"\n' for name in headers)
    source += "void example(const deepinfer::MatrixView& x, const deepinfer::MutableMatrixView& y) {\n"
    (tmp_path / "example.cc").write_text(source + example + "}\n")
    command = ["g++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", f"-I{ROOT / 'include'}", "example.cc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_named_files_exist():
    for name in re.findall(r"\]\((\w[\w./-]*)\)", README):
        assert (ROOT / name).exists(), name
