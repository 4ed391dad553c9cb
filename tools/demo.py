#!/usr/bin/env python3
"""Asks the three checkpoints that `make models` made one question and prints one table.

Run from the top of the repository (`make demo` does). Figures are of this machine and this run.
"""

import json
import os
import subprocess
import sys

PROGRAM = "build/deepinfer"
MODELS = [f"build/models/smollm2-{name}" for name in ("bf16", "fp8-32x32", "mxfp4")]
QUESTION = "Explain in two sentences why the sky is blue."
TEXT, PREDICTIONS = "build/jargon.txt", 2048


def run_json(*arguments):
    # standard error stays where it is: progress bars and messages are for the reader
    done = subprocess.run([PROGRAM, *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main():
    info = run_json("info")
    print(f"{info['cpu']}, {info['threads']} threads, {info['isa']}\n\n> {QUESTION}\n")
    rows = []
    for model in MODELS:
        out = run_json("run", model, "--prompt", QUESTION, "--max-tokens", "96")
        name = os.path.basename(model)
        print(f"[{name}] {out['text'].strip()}\n", flush=True)
        rows.append((name, out))
    print(f"Perplexity on the first {PREDICTIONS} predictions of the Jargon File ...", flush=True)
    head = ("checkpoint", "file MB", "private MB", "tokens/s", "GB/s", "perplexity")
    lines = []
    for (name, out), model in zip(rows, MODELS):
        memory = out["memory"]
        loss = run_json("perplexity", model, "--file", TEXT, "--tokens", str(PREDICTIONS))
        lines.append(
            (
                name,
                f"{memory['checkpoint_bytes'] / 1e6:.1f}",
                f"{memory['private_bytes'] / 1e6:.1f}",
                f"{out['decode_tokens_per_second']:.1f}",
                f"{out['decode_gbps']:.2f}",
                f"{loss['perplexity']:.2f}",
            )
        )
    print()
    for line in (head, *lines):
        print("{:<20} {:>9} {:>11} {:>9} {:>7} {:>11}".format(*line))


if __name__ == "__main__":
    main()
