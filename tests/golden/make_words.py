"""Makes words.json: how published pre-tokenizers cut texts into words.

    pip install tokenizers==0.23.3
    python tests/golden/make_words.py

The words are those of the PyPI package tokenizers, from its Split and Digits alone, before the byte
alphabet.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, Sequence, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"
    + "\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n"
    + r"]*|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+",
]

# A step is [pattern, behavior].
TOKENIZERS = {
    "gpt2": [[GPT2, "isolated"]],
    "smollm2": [[r"\p{N}", "isolated"], [GPT2, "isolated"]],
    "llama3": [[LLAMA3, "isolated"]],
    "qwen2": [[LLAMA3.replace("{1,3}", ""), "isolated"]],
    "o200k": [[O200K, "isolated"]],
    "deepseek": [[pattern, "isolated"] for pattern in DEEPSEEK],
    "removed": [[r"\s+", "removed"]],
    "empty matches": [["a*", "isolated"]],
    "script": [[r"\p{Han}+|\u3042|[\x41-\x{43}]", "isolated"]],
}

TEXTS = [
    "Hello world, it's 2024!",
    " IT'S  they'LL we'Ve 'ſo don't",
    "1234567 3.14 a1b22c333 ½Ⅷ ٠١٢٣",
    "a  b   c \t d\u00a0\u00a0e\u3000f",
    "  \n\n  x\r\n\r\ny \r z\n",
    "   trailing   ",
    "if (x==1) {\n\treturn a->b[2]; // ok\n}\n",
    "camelCase PascalCase HTTPServer iOS ABCdef ǅabc",
    "https://a.b/c?d=e&f=%20 /usr/lib/",
    "café cafe\u0301 Zu\u0308rich \u0301x",
    "漢字かなカタカナ123テスト、你好world。",
    "한국어 \u1112\u1161\u11ab",
    "שלום, عالم",
    "👩\u200d👩\u200d👧 👍🏽!! 🇩🇪",
    "\u180ex \u180e \u200by \ufeffz \x85w \x1c v",
    "...!!!??? --- __init__ $100 #tag @user",
    "baac aaa",
    "\u2028\u2029a\u2028b",
]


def main():
    result = {"made_by": f"tokenizers {tokenizers.__version__}", "cases": []}
    for name, steps in TOKENIZERS.items():
        if name == "smollm2":
            cut = Sequence([Digits(individual_digits=True), Split(Regex(GPT2), "isolated")])
        else:
            cut = Sequence([Split(Regex(pattern), behavior) for pattern, behavior in steps])
        texts = [{"text": t, "words": [w for w, _ in cut.pre_tokenize_str(t)]} for t in TEXTS]
        result["cases"].append({"name": name, "steps": steps, "texts": texts})
    out = Path(__file__).with_name("words.json")
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{out}: {sum(len(c['texts']) for c in result['cases'])} texts")


main()
