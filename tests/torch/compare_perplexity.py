#!/usr/bin/env python3
"""Perplexity of the program beside the torch reference, on the beginning of the Jargon File.

    python tests/torch/compare_perplexity.py [--tokens 20480] [--sums f32|f64]      after `make models`

f64 is the reference's own arithmetic and slow; f32 shows the same within what the order of sums does.
"""

import argparse
import json
import subprocess
from pathlib import Path

import torch
from reference_llama import load, perplexity
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("smollm2-bf16", "smollm2-fp8-32x32", "smollm2-mxfp4")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20480)
    parser.add_argument("--sums", choices=("f32", "f64"), default="f32")
    options = parser.parse_args()
    text = ROOT / "build" / "jargon.txt"
    sums = torch.float32 if options.sums == "f32" else torch.float64
    print(f"{'checkpoint':<20} {'deepinfer':>10} {'torch':>10} {'ratio':>8}", flush=True)
    for name in FOLDERS:
        folder = ROOT / "build" / "models" / name
        arguments = ["--file", text, "--context", "1024", "--tokens", str(options.tokens), "--json"]
        done = subprocess.run(
            [ROOT / "build" / "deepinfer", "perplexity", folder, *arguments], capture_output=True, check=True
        )
        ours = json.loads(done.stdout)["perplexity"]
        ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text()).ids
        with torch.no_grad():
            theirs = perplexity(load(folder, sums=sums), ids, context=1024, tokens=options.tokens)
        print(f"{name:<20} {ours:>10.4f} {theirs:>10.4f} {ours / theirs:>8.5f}", flush=True)


if __name__ == "__main__":
    main()
