"""The installed library as others use it: found by CMake and by pkg-config, static and shared; which names it
shows. Needs the builds of the presets release and shared."""

import json
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = ROOT / "tests" / "consumer"
BUILDS = {"static": ROOT / "build", "shared": ROOT / "build-shared"}


def run(*command, **keywords):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **keywords)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=BUILDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def prefix(kind, tmp_path_factory):
    """Installed into a folder other than the one that was configured."""
    folder = tmp_path_factory.mktemp(kind)
    run("cmake", "--install", BUILDS[kind], "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def library(prefix):
    return next(prefix.rglob("deepinfer.pc")).parent.parent


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """One fp8 weight [64, 64] of ones with the scale 0.5: a block size of 32 x 32 alone has a grid [2, 2]."""
    header = {
        "up.weight": {"dtype": "F8_E4M3", "shape": [64, 64], "data_offsets": [0, 4096]},
        "up.weight_scale_inv": {"dtype": "F8_E8M0", "shape": [2, 2], "data_offsets": [4096, 4100]},
    }
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\x38" * 4096 + b"\x7e" * 4)
    return path


def check_consumer(program, checkpoint, library):
    out = run(program, checkpoint, "up", env=os.environ | {"LD_LIBRARY_PATH": str(library)})
    assert out.split() == ["32"] * 64


def test_cmake_finds_it(prefix, library, checkpoint, tmp_path):
    run("cmake", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", tmp_path)
    check_consumer(tmp_path / "consumer", checkpoint, library)


def test_cmake_refuses_another_version(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES CXX)\nfind_package(deepinfer 9.0 REQUIRED)\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "deepinfer" in done.stderr and "9.0" in done.stderr


def test_pkg_config_finds_it(kind, prefix, library, checkpoint, tmp_path):
    environment = os.environ | {"PKG_CONFIG_PATH": str(library / "pkgconfig")}
    static = ["--static"] if kind == "static" else []
    flags = run("pkg-config", *static, "--cflags", "--libs", "deepinfer", env=environment).split()
    assert f"-I{prefix}/include" in [os.path.normpath(f) if f.startswith("-I") else f for f in flags], flags
    program = tmp_path / "consumer"
    run("g++", "-std=c++20", CONSUMER / "consumer.cc", "-o", program, *flags)
    check_consumer(program, checkpoint, library)
    version = run("pkg-config", "--modversion", "deepinfer", env=environment).strip()
    assert version == json.loads(run(BUILDS[kind] / "deepinfer", "info", "--json"))["version"]


def test_installed_headers_are_those_of_the_tree(prefix):
    installed = {p.name for p in (prefix / "include" / "deepinfer").iterdir()}
    assert installed == {p.name for p in (ROOT / "include" / "deepinfer").glob("*.h")}
    assert [p.name for p in (prefix / "include").iterdir()] == ["deepinfer"]


def test_every_installed_header_compiles_alone(prefix, tmp_path):
    for header in sorted((prefix / "include" / "deepinfer").iterdir()):
        source = tmp_path / "alone.cc"
        source.write_text(f'#include "deepinfer/{header.name}"\n')
        run("g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{prefix}/include", source)


def test_shared_library_shows_the_public_names_only():
    path = BUILDS["shared"] / "libdeepinfer.so"
    dynamic = run("readelf", "-dW", path)
    assert "Library soname: [libdeepinfer.so.0]" in dynamic
    lines = run("nm", "-DC", "--defined-only", "--with-symbol-versions", path).splitlines()
    names = {line.split(" ", 2)[2] for line in lines if not line.endswith(" A DEEPINFER_0")}
    public = re.compile(r"(vtable for |typeinfo (name )?for )?deepinfer(::|_).*@@DEEPINFER_0$")
    assert not [name for name in names if not public.fullmatch(name)]
    folders = "|".join(p.name for p in (ROOT / "src").iterdir())
    assert not [name for name in names if re.search(rf"\bdeepinfer::({folders})::\S*\(", name.split("(")[0] + "(")]
    assert any(name.startswith("deepinfer::linear(") for name in names)
