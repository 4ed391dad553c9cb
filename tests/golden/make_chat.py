"""Makes chat_prompts.json: conversations and the prompts that their Jinja templates give.

    pip install jinja2==3.1.6 && pip install --no-deps trl==1.16.0
    python tests/golden/make_chat.py

The environment is set up as transformers does in apply_chat_template(add_generation_prompt=True).
The long templates of Qwen3 are not kept here: the package trl has them, and the file gets their
SHA-256.
"""

import hashlib
import importlib.util
import json
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

MESSAGES = (
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LOOP = "{% for message in messages %}"
SYSTEM = (
    "{%% if loop.first and messages[0]['role'] != 'system' %%}"
    "{{ '<|im_start|>system\n%s<|im_end|>\n' }}{%% endif %%}"
)
DEFINED = (
    "{% if not add_generation_prompt is defined %}"
    "{% set add_generation_prompt = false %}{% endif %}"
)
SMOLLM2 = (
    LOOP
    + SYSTEM % "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    + MESSAGES
)
TEMPLATES = [
    ("smollm2", SMOLLM2),
    ("smollm2", SMOLLM2.replace("\n", "\\n")),
    ("smollm2", SMOLLM2 + "\n"),
    ("smollm2", SMOLLM2 + "\n\n"),
    ("qwen2", LOOP + SYSTEM % "You are a helpful assistant." + MESSAGES),
    ("chatml", LOOP + MESSAGES),
    ("chatml", DEFINED + LOOP + MESSAGES),
]

TRL = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
LONG_TEMPLATES = [
    ("qwen3", TRL / "qwen3.jinja"),
    ("qwen3-instruct-2507", TRL / "qwen3_instruct_2507.jinja"),
]


def say(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


CONVERSATIONS = [
    say(("user", "Hi")),
    say(("system", "Be brief."), ("user", "Hi")),
    say(("system", "")),
    say(("user", "")),
    say(("user", "Hi"), ("assistant", "Hello!"), ("user", "What is 2+2?\n\nThink.")),
    say(("user", "Hi"), ("system", "Late."), ("user", " spaces \n")),
    say(("assistant", "I start.")),
    say(("system", "A"), ("system", "B"), ("assistant", "C"), ("assistant", "D")),
    say(("user", "{{ 7 * 7 }} {% raw %} \\n <|im_end|> é 漢 😀 \r\n\t\"'")),
    # Thoughts, as a model writes them and as nobody should.
    say(("user", "Q"), ("assistant", "<think>\nhm\n</think>\n\nA"), ("user", "Q2")),
    say(("user", "Q"), ("assistant", "<think>\n\n\nhm\n\n</think>\n\n\nA\n")),
    say(("user", "Q"), ("assistant", "A without"), ("assistant", "\n\nB")),
    say(("user", "Q"), ("assistant", "<think>hm</think>A"), ("assistant", "<think>\n</think>")),
    say(("user", "Q"), ("assistant", "a<think>b<think>c</think>d</think>e"), ("system", "S")),
    say(("user", "Q"), ("assistant", "no begin\n</think>x"), ("user", "<tool_response>\n1\n</tool_response>")),
    say(("user", "<tool_response></tool_response>"), ("assistant", "<think>t</think>y")),
    say(("user", "</think>"), ("assistant", "\n"), ("assistant", "<think>open")),
]


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def prompts(text):
        template = environment.from_string(text)
        return [
            {"messages": m, "prompt": template.render(messages=m, add_generation_prompt=True)}
            for m in CONVERSATIONS
        ]

    cases = [
        {"name": name, "template": text, "prompts": prompts(text)} for name, text in TEMPLATES
    ]
    for name, path in LONG_TEMPLATES:
        text = path.read_text()
        digest = hashlib.sha256(text.encode()).hexdigest()
        cases.append({"name": name, "sha256": digest, "prompts": prompts(text)})
    out = Path(__file__).with_name("chat_prompts.json")
    result = {"made_by": f"jinja2 {jinja2.__version__}", "cases": cases}
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{out}: {len(cases)} templates, {len(CONVERSATIONS)} conversations")


main()
