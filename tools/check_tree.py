#!/usr/bin/env python3
"""Checks the rules of the tree that no compiler checks (docs/architecture.md):

  includes   which folder may include which
  symbols    objects of one instruction set have no weak symbols: gcc and clang, release and debug
  vectors    all other objects run on the first x86-64 CPUs: no AVX, no BMI
  names      kernels are called <op>_<weight>_<act>_<mr>x<nr>_<isa>
  flags      no flag that changes bits
  headers    every header compiles on its own
  exports    public classes and functions are marked DEEPINFER_API
  length     files of at most 400 lines (kernels 800): warns only

Run from the top of the repository after a build. Exits 1 on the first rule that is broken.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# folder -> what its files may include, besides itself, the public headers and the system's
ALLOWED = {
    "formats": set(),
    "json": set(),
    "checkpoint": set(),
    "kernels": {"formats"},
    "weights": {"formats", "kernels/kernel.h"},
    "activations": {"formats", "kernels/kernel.h"},
    "runtime": {"kernels"},
    "ops": {"kernels", "formats", "weights", "activations", "runtime"},
    "models": {"ops", "checkpoint", "weights", "runtime", "formats", "json"},
    "text": {"kernels/math.h", "json", "runtime/fp_state.h", "checkpoint/sha256.h"},
    "c_api": set(),
}
# public headers that the folders below the public API may use
PUBLIC_OF = {
    "formats": set(),
    "kernels": {"format.h"},
    "checkpoint": {"tensor.h", "checkpoint.h", "error.h"},
}
ISA_FILES = ["x86_avx2", "x86_avx512"]
MAX_LINES, MAX_KERNEL_LINES = 400, 800


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True)
    return [Path(line) for line in out.stdout.splitlines() if Path(line).exists()]


def check_includes():
    problems = []
    for path in tracked("src/*.cc", "src/*.h", "cli/*.cc", "cli/*.h"):
        folder = path.parts[1] if path.parts[0] == "src" else "cli"
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            if name.startswith("deepinfer/"):
                allowed = PUBLIC_OF.get(folder)
                if allowed is not None and name.removeprefix("deepinfer/") not in allowed:
                    problems.append(f"{path}: includes {name}")
            elif folder == "cli":
                if "/" in name:
                    problems.append(f"{path}: includes {name}; cli uses the public headers only")
            else:
                target = name.split("/")[0]
                if target != folder and not {target, name} & ALLOWED[folder]:
                    problems.append(f"{path}: includes {name}; {folder} may not")
    return problems


def weak_symbols(objects):
    problems = []
    for path in objects:
        out = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True)
        for line in out.stdout.splitlines():
            kind = line.split()[-2] if len(line.split()) > 1 else ""
            if re.match(r"^\S* ?[VWuvw] ", line) or kind in ("W", "V", "u"):
                problems.append(f"{path}: weak symbol: {line.strip()}")
    return problems


def compile_as(command, compiler, optimization, target):
    """Runs a compile command with another compiler or optimization."""
    words = command["command"].split()
    first = next(i for i, word in enumerate(words) if word.endswith("++"))  # after a launcher such as ccache
    words = [word for word in words[first + 1 :] if word not in ("-O3", "-DNDEBUG")]
    words[words.index("-o") + 1] = str(target)
    words = [compiler, *words, *optimization, "-Wno-unknown-warning-option"]
    subprocess.run(words, cwd=command["directory"], check=True)


def check_symbols():
    """An inline function in an ISA object could be the copy that the linker keeps for everyone."""
    problems = []
    commands = {Path(c["file"]).stem: c for c in json.loads(Path("build/compile_commands.json").read_text())}
    release, debug = ["-O3", "-DNDEBUG"], ["-O0"]
    with tempfile.TemporaryDirectory() as folder:
        for name in ISA_FILES:
            problems += weak_symbols(Path("build").rglob(f"{name}.cc.o"))
            for compiler, optimization in (("g++", debug), ("clang++-14", release), ("clang++-14", debug)):
                target = Path(folder) / f"{name}-{compiler}{optimization[0]}.o"
                compile_as(commands[name], compiler, optimization, target)
                problems += weak_symbols([target])
    return problems


# Instructions that x86-64 does not promise: AVX and AVX-512 (all begin with v or use mask registers), BMI and
# its kin.
BEYOND_X86_64 = re.compile(
    r"\t(v\w+|andn|bextr|bls[ir]|blsmsk|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt|movbe)\b|%[yz]mm|%k[0-7]"
)


def check_vectors():
    """Only the files that are chosen at run time may need more than every x86-64 CPU has."""
    problems = []
    if platform.machine() != "x86_64":
        return problems
    objects = [o for o in Path("build/CMakeFiles").glob("deepinfer*.dir/**/*.o") if o.name[:-5] not in ISA_FILES]
    if not objects:
        return ["build/CMakeFiles: no objects"]
    for path in objects:
        out = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True
        )
        wrong = [line.strip() for line in out.stdout.splitlines() if BEYOND_X86_64.search(line)]
        problems += [f"{path}: {len(wrong)} instructions beyond x86-64, the first: {wrong[0]}"] if wrong else []
    return problems


def check_names():
    info = subprocess.run(["build/deepinfer", "info", "--json"], capture_output=True, text=True, check=True)
    problems = []
    for isa in json.loads(info.stdout)["isas"]:
        for name in isa["kernels"]:
            if not re.fullmatch(r"(gemm|gemv)_(bf16|fp8|mxfp8|fp4|mxfp4)_bf16_\d+x\d+_" + isa["name"], name):
                problems.append(f"kernel name {name}")
    return problems


def check_flags():
    problems = []
    bad = re.compile(r"-ffast-math|-Ofast|-funsafe-math|-ffp-contract=(fast|on)")
    for path in tracked("CMakeLists.txt", "CMakePresets.json", "Makefile", "*.cmake", "src/*", "cli/*"):
        if bad.search(path.read_text(errors="replace")):
            problems.append(f"{path}: {bad.pattern}")
    if "-ffp-contract=off" not in Path("CMakeLists.txt").read_text():
        problems.append("CMakeLists.txt: -ffp-contract=off is missing")
    return problems


def check_headers():
    problems = []
    for path in tracked("include/*.h", "src/*.h", "cli/*.h"):
        words = ["g++", "-std=c++20", "-fsyntax-only", "-Iinclude", "-Isrc", "-Icli", "-w"]
        source = f'#include "{path.resolve()}"\n'
        done = subprocess.run([*words, "-x", "c++", "-"], input=source, text=True, capture_output=True)
        if done.returncode != 0:
            problems.append(f"{path}: does not compile on its own: {done.stderr.splitlines()[0]}")
    return problems


def check_exports():
    """Without the mark a program links to the static library and not to the shared one."""
    problems = []
    function = re.compile(r"^(?!DEEPINFER_API|template|inline|constexpr|using|typedef|extern)\w[\w:<>,&* ]*[ &*]\w+\(.*", re.M)
    type_ = re.compile(r"^(class|struct) (?!DEEPINFER_API)(\w+)[^;{]*\{\n(.*?)^\};", re.M | re.S)
    member = re.compile(r"^  \w(?:operator\S+|[^=\n])*\)( const)?( noexcept)?;$", re.M)
    for path in tracked("include/*.h"):
        text = path.read_text()
        unmarked = [match[0] for match in function.finditer(text)]
        unmarked += [f"{m[1]} {m[2]}" for m in type_.finditer(text) if m[1] == "class" or member.search(m[3])]
        problems += [f"{path}: not marked DEEPINFER_API: {name}" for name in unmarked]
    return problems


def warn_length():
    for path in tracked("*.cc", "*.h", "*.py"):
        limit = MAX_KERNEL_LINES if path.parts[:2] == ("src", "kernels") else MAX_LINES
        lines = len(path.read_text(errors="replace").splitlines())
        if lines > limit:
            print(f"warning: {path} has {lines} lines, more than {limit}: split it by idea")


def main():
    for check in (check_includes, check_flags, check_names, check_symbols, check_vectors, check_exports, check_headers):
        problems = check()
        print(f"{check.__name__}: {'ok' if not problems else 'FAILED'}")
        for problem in problems:
            print(f"  {problem}")
        if problems:
            return 1
    warn_length()
    return 0


if __name__ == "__main__":
    sys.exit(main())
