#!/usr/bin/env python3
"""Write tests/golden/transcripts.json: what the reference says about three checkpoints.

    python tests/torch/make_transcripts.py --bf16 DIR --fp8 DIR --mxfp4 DIR [--text FILE]

Greedy ids (an end token does not stop them), at every step the best logit and its gap to the second
best, and the perplexity of the beginning of the Jargon File (Debian package jargon-text).

The order of sums is visible in all of this: an f32 sum that is one bit higher now and then changes
a bf16 rounding or an activation's code, and the layers amplify it. `f32_sums` says how much: the
same ids (forced, not chosen) with every sum in f32 as torch happens to take it. `flips` are the
steps at which another id would be chosen, with their gaps: a runtime may leave a transcript at such
gaps.

Prompt ids come from each folder's tokenizer.json and must be the same for all three.
`weights_sha256` is taken over names and dequantized f32 values, so it does not depend on how a file
is laid out.
"""

import argparse
import gzip
import hashlib
import json
import math
import time
from importlib.metadata import version
from pathlib import Path

import jinja2
import torch
from reference_llama import Checkpoint, greedy, load, perplexity
from tokenizers import Tokenizer

NUMERIC_CONTRACT = 1
STEPS, CONTEXT, PREDICTIONS = 32, 1024, 2048
OUTPUT = Path(__file__).resolve().parent.parent / "golden" / "transcripts.json"
TEXT = Path("/usr/share/doc/jargon-text/jargon.txt.gz")
SCALE_SUFFIXES = (".weight_scale", ".weight_scale_inv")

PLAIN = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "How many legs does a spider have?"},
        {"role": "assistant", "content": "A spider has 8 legs."},
        {"role": "user", "content": "And why don't we call it an insect?"},
    ],
]


def render_chat(folder, messages):
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def make_prompts(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [{"kind": "text", "text": text} for text in PLAIN]
    for messages in CHATS:
        text = render_chat(folder, messages)
        prompts.append({"kind": "chat", "messages": messages, "text": text})
    for prompt in prompts:
        prompt["ids"] = tokenizer.encode(prompt["text"], add_special_tokens=False).ids
    return prompts, tokenizer


def make_text(path, tokenizer):
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {
        "name": path.name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "num_ids": len(ids),
        "context": CONTEXT,
        "predictions": PREDICTIONS,
        "ids": ids[: PREDICTIONS + 1],
    }


def weights_sha256(folder):
    checkpoint, digest = Checkpoint(folder), hashlib.sha256()
    stems = {name.removesuffix("_packed").removesuffix(".weight") for name in checkpoint.names}
    stems = {stem for stem in stems if not stem.endswith(SCALE_SUFFIXES)}
    for stem in sorted(stems):
        w = checkpoint.linear(stem).w.float()
        digest.update(f"{stem} {list(w.shape)}\n".encode())
        digest.update(w.contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()


def compare_f32_sums(folder, model, prompts, transcripts, text):
    """What changes when every sum is taken in f32, in torch's order."""
    other = load(folder, sums=torch.float32)
    squares, largest, count, flips = 0.0, 0.0, 0, []
    for prompt, transcript in zip(prompts, transcripts, strict=True):
        ids, first = prompt["ids"] + transcript["ids"][:-1], len(prompt["ids"]) - 1
        exact, found = model.forward(ids)[first:], other.forward(ids)[first:]
        difference = (found - exact).double()
        squares += float(difference.pow(2).sum())
        largest = max(largest, float(difference.abs().max()))
        count += difference.numel()
        changed = found.argmax(-1) != torch.tensor(transcript["ids"])
        flips += [transcript["gap"][i] for i in changed.nonzero().flatten().tolist()]
    return {
        "logit_rms": round(math.sqrt(squares / count), 4),
        "logit_largest": round(largest, 4),
        "flips": sorted(flips),
        "perplexity": round(perplexity(other, text["ids"], CONTEXT, PREDICTIONS), 6),
    }


def make_transcript(model, tokenizer, prompt):
    ids, best_two = greedy(model, prompt["ids"], STEPS)
    return {
        "ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=False),
        "best": [round(best, 4) for best, _ in best_two],
        "gap": [round(best - second, 5) for best, second in best_two],
    }


def describe(folder, prompts, text, tokenizer):
    model = load(folder)
    transcripts = [make_transcript(model, tokenizer, prompt) for prompt in prompts]
    return {
        "weights_sha256": weights_sha256(folder),
        "transcripts": transcripts,
        "perplexity": round(perplexity(model, text["ids"], CONTEXT, PREDICTIONS), 6),
        "f32_sums": compare_f32_sums(folder, model, prompts, transcripts, text),
    }


def dump(value, depth=0):
    """JSON with one line for a list of numbers."""
    pad = "  " * (depth + 1)
    if isinstance(value, dict):
        items = [f"{pad}{json.dumps(key)}: {dump(v, depth + 1)}" for key, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + pad[2:] + "}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[\n" + ",\n".join(pad + dump(v, depth + 1) for v in value) + "\n" + pad[2:] + "]"
    return json.dumps(value, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description="Write the golden transcripts.")
    for kind in ("bf16", "fp8", "mxfp4"):
        parser.add_argument(f"--{kind}", type=Path, required=True, metavar="DIR")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    args = parser.parse_args()
    folders = {kind: getattr(args, kind) for kind in ("bf16", "fp8", "mxfp4")}
    prompts, tokenizer = make_prompts(folders["bf16"])
    for kind, folder in folders.items():
        if make_prompts(folder)[0] != prompts:
            parser.error(f"--{kind}: its tokenizer gives other prompt ids than that of --bf16")
    text = make_text(args.text, tokenizer)
    checkpoints = {}
    for kind, folder in folders.items():
        begin = time.monotonic()
        checkpoints[kind] = describe(folder, prompts, text, tokenizer)
        seconds = time.monotonic() - begin
        print(f"{kind}: perplexity {checkpoints[kind]['perplexity']}, {seconds:.0f} s", flush=True)
    result = {
        "numeric_contract": NUMERIC_CONTRACT,
        "made_by": "tests/torch/make_transcripts.py",
        "versions": {name: version(name) for name in ("torch", "tokenizers")},
        "prompts": prompts,
        "perplexity_text": text,
        "checkpoints": checkpoints,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(dump(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
