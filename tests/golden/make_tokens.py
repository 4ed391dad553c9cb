"""Makes smollm2_tokens.json: texts and the token ids that the PyPI package tokenizers gives them.

    pip install tokenizers==0.23.3
    python tests/golden/make_tokens.py build/models/smollm2-bf16/tokenizer.json

A case has the text; `ids`, with special tokens recognised in the text; `plain`, the ids without,
where they differ; `lossy`, where characters without a token were left out, so that decoding does
not give the text back.
"""

import json
import random
import sys
import unicodedata
from pathlib import Path

import tokenizers

ENGLISH = """Hello
Hello world
 Hello world
Hello, world!
The quick brown fox jumps over the lazy dog.
It's what they'll say: we've, I'm, you'd, don't, can't, CAN'T, IT'S, he'S
'tis 'twas 're 've 'm 'll 'd 's 't
"Quoted," she said -- and left...
e.g. i.e. U.S.A. Mr. O'Neill-Smith
antidisestablishmentarianism floccinaucinihilipilification
What is the capital of France?
Once upon a time, there was a little robot who wanted to learn to paint.
mixedCase camelCase PascalCase snake_case kebab-case SCREAMING_CASE
a b c d e f g h i j k l m n o p q r s t u v w x y z
I
a
.
?!
user@example.com https://example.com/a/b?c=d&e=%20#frag
C:\\Users\\name\\file.txt /usr/local/lib ../up ~/home
# Heading\n\n- item *one*\n- item **two**\n\n> quote\n\n`code`
| a | b |\n|---|---|\n| 1 | 2 |
$E = mc^2$ \\frac{a}{b} \\alpha + \\beta""".split("\n")

CODE = [
    "int main(int argc, char** argv) {\n  return 0;\n}\n",
    "#include <vector>\n#define MAX(a, b) ((a) > (b) ? (a) : (b))\n",
    "for (std::size_t i = 0; i < n; ++i) sum += x[i] * w[i];",
    "template <typename T> auto f(T&& t) -> decltype(t) { return std::forward<T>(t); }",
    "def f(x):\n    if x is None:\n        return []\n    return [y ** 2 for y in x]\n",
    "class A:\n\tdef __init__(self):\n\t\tself.x = 1\n",
    'print(f"{x:>10.3f}\\n")',
    "SELECT * FROM t WHERE a='b' AND c<>1 ORDER BY d DESC;",
    '{"key": [1, 2.5, null, true], "nested": {"a": "\\u00e9"}}',
    '<div class="a"><p>Hi &amp; bye</p><!-- c --></div>',
    'if [ -f "$1" ]; then echo $(cat "$1") | sed \'s/a/b/g\' > /dev/null 2>&1; fi',
    'fn main() { let v: Vec<u8> = vec![0u8; 16]; println!("{:?}", v); }',
    "x = 0x1F + 0b1010 - 1e-10 ** 3 // 2 % 7",
    "a+=b;a-=b;a*=b;a/=b;a<<=1;a>>=1;a&=b;a|=b;a^=b;a!=b;a==b;a===b;a=>b;a->b;a::b",
    "((((((((()))))))))",
    "{{{{}}}}[[[]]]",
    "//////////",
    "==========",
    "----------------------------------------",
    "\tif (x) {\r\n\t\ty();\r\n\t}\r\n",
]

NUMBERS = """1
12
123
1234
1234567
3.14
-2.71828e-10
1,000,000.00
0x7fff 0755 1e9
2024-12-31T23:59:59Z
192.168.0.1
+1 (555) 010-9999
50% of 3/4
a1b2c3 1a2b3c
x86_64 v1.2.3-rc4 H2O
٠١٢٣٤٥ ०१२३ 一二三 Ⅷ ½ ² ₃ ①
1 2  3   4""".split("\n")

SPACES = [
    "",
    " ",
    "  ",
    "   ",
    "        ",
    " " * 17,
    " " * 64,
    " " * 65,
    " " * 200,
    "\t",
    "\t\t",
    "\t\t\t\t\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r",
    "\r\n",
    "\r\n\r\n",
    " \n",
    "\n ",
    "  \n  ",
    "\t \t ",
    "a ",
    " a",
    "a  b",
    "a   b",
    "a\nb",
    "a\n\nb",
    "a\n\n\nb",
    "a \n b",
    "a\t b",
    "a\tb",
    "end.  ",
    "end.\n",
    "  start",
    "\n\n  x",
    "x\n\n  ",
    "a\u00a0b",
    "\u00a0",
    "\u00a0\u00a0x",
    "a\u3000b",
    "a\u2003 b",
    "a\u2028b\u2029c",
    "a\u0085b",
    "\u0085 x",
    "\u180e x",
    "a\u180eb",
    "x\u1680y",
    "\u200b",
    "a\u200bb",
    "a\u200cb",
    "a\u200db",
    "\ufeffx",
    "\u2060",
    "\u00ad",
    "\x0b\x0c",
    "a\x0bb",
    "\x1c\x1d\x1e\x1f",
    "\x00",
    "a\x00b",
    "\x07\x1b[0m",
    "\x7f",
    "a\x04b",
    "\x06\x13\x14\x16",
]

UNICODE = """café naïve Zürich Ångström
cafe\u0301 nai\u0308ve Zu\u0308rich A\u030angstro\u0308m
e\u0301\u0323 e\u0323\u0301 \u0301 a\u0301\u0301\u0301
Łódź Dvořák Şişli Đặng İstanbul ıssız straße STRASSE ẞ
ﬁ ﬂ ﬀ ℌ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 ǅ ª º ʰ
Привет, мир! Как дела?
Γειά σου Κόσμε
你好，世界！今天天气很好。
こんにちは世界。カタカナ、ひらがな、漢字。
안녕하세요 세계 \u1112\u1161\u11ab\u1100\u1173\u11af
ｆｕｌｌｗｉｄｔｈ １２３
สวัสดีชาวโลก
नमस्ते दुनिया क्षत्रिय
שלום עולם מה שלומך
שָׁלוֹם
مرحبا بالعالم كيف حالك؟
\u202bRTL\u202c \u2066isolate\u2069 \u200ermark\u200f
😀 😃 😄
👍🏽 👋🏿
👩\u200d👩\u200d👧\u200d👦 👨\u200d💻 🏳️\u200d🌈
🇩🇪🇫🇷🇯🇵
❤️ ✈︎ ☺
1️⃣ #️⃣
→ ← ↔ ∀x∈ℝ ∑∏∫ √2 ≤ ≥ ≠ ∞
“curly” ‘single’ – — … • © ® ™ € £ ¥
'ſ 'S K Å Ω
\u0378 \U0010fffd \ue000 \uffff \ufffd
\U00020000 \U0002f800 \U000e0041 \U00040000
Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!
ᚠᛇᚻ 𓀀𓂀 𒀀 ꦗꦮ ᐃᓄᒃ""".split("\n")

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|>",
    "<|im_start|",
    "|im_start|>",
    "<|im_start|>>",
    "<<|im_start|>",
    " <|im_end|> ",
    "a<|im_end|>b",
    "<|IM_END|>",
    "<|im_ end|>",
    "<repo_name>x<file_sep>y<filename>z",
    "<reponame><repo_name>",
    "<gh_stars>100<issue_start><issue_comment>c<issue_closed>",
    "<jupyter_start><jupyter_text>t<jupyter_code>c",
    "<jupyter_output><jupyter_script><empty_output>",
    "<|endoftext|><|endoftext|>",
    "<s></s><unk><pad>[INST]",
    "\n<|im_end|>\n",
    "<|im_start|>1<|im_end|>2",
    "é<|im_end|>é",
    "<|im_start|>\u0301",
]

LONG = [
    "a" * 47,
    "a" * 48,
    "a" * 49,
    "a" * 50,
    "a" * 1000,
    "ab" * 300,
    "abc" * 300,
    "the" * 200,
    "hello" * 100,
    "http://" + "x" * 300,
    "=" * 300,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "漢" * 200,
    "😀" * 50,
    "\u0301" * 100,
    "0123456789" * 20,
    "_" * 130,
    "\n" * 100,
    "\t" * 100,
    "aA" * 60,
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 5,
    "supercalifragilisticexpialidocious" * 3,
]


def random_texts(count):
    """Reproducible: the seed is fixed, and characters are those assigned in Unicode 3.2."""
    rng = random.Random(20250207)
    assigned = [
        c for c in range(0x110000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")
    ]
    pools = [
        [chr(c) for c in assigned if c < 0x80],
        [chr(c) for c in assigned if c < 0x600],
        [chr(c) for c in assigned],
        list(" \t\n\r'stdmrelv0123456789aAzZ.,<|>_-\u00a0\u0301é漢"),
    ]
    return ["".join(rng.choices(rng.choice(pools), k=rng.randrange(1, 30))) for _ in range(count)]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_tokens.py TOKENIZER.json")
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])

    def encode(text, parse_special):
        tokenizer.encode_special_tokens = not parse_special
        return tokenizer.encode(text, add_special_tokens=False).ids

    lines = []
    for text in ENGLISH + CODE + NUMBERS + SPACES + UNICODE + SPECIAL + LONG + random_texts(160):
        case = {"text": text, "ids": encode(text, True)}
        plain = encode(text, False)
        if plain != case["ids"]:
            case["plain"] = plain
        if tokenizer.decode(case["ids"], skip_special_tokens=False) != text:
            case["lossy"] = True
        lines.append(json.dumps(case))
    header = json.dumps(f"tokenizers {tokenizers.__version__}")
    out = Path(__file__).with_name("smollm2_tokens.json")
    out.write_text('{"made_by": %s, "cases": [\n%s\n]}\n' % (header, ",\n".join(lines)))
    print(f"{out}: {len(lines)} cases, {sum('lossy' in line for line in lines)} lossy")


main()
