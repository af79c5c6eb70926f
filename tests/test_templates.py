"""Chat templates: the renders of transformers, and nothing that a hostile template can do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from runner.errors import TemplateError
from runner.templates import (
    Piece,
    Rendered,
    reasoning_markers,
    render,
    starts_in_reasoning,
)
from runner.templates.budget import MAX_SECONDS, MAX_WORK, Budget, LimitExceeded
from runner.templates.sandbox import MAX_NODES, MAX_SOURCE_CHARS
from runner.types import Message

# --- templates in the manner of well-known models, written for these tests ---

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{#- the first message may be the system's #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|><|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)

DEEPSEEK = """\
{% if not thinking is defined %}{% set thinking = false %}{% endif %}
{%- set ns = namespace(is_first=true, system_prompt='') -%}
{%- for message in messages if message['role'] == 'system' -%}
    {%- set ns.system_prompt = ns.system_prompt ~ ('' if ns.is_first else '\n\n') ~ message['content'] -%}
    {%- set ns.is_first = false -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}{%- continue -%}{%- endif -%}
    {%- if message['role'] == 'user' -%}{{ '<｜User｜>' + message['content'] }}
    {%- elif message['role'] == 'assistant' -%}
        {%- set content = message['content'] -%}
        {%- if '</think>' in content -%}{%- set content = content.split('</think>', 1)[1] -%}{%- endif -%}
        {{ '<｜Assistant｜></think>' + content + '<｜end▁of▁sentence｜>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜>' }}{{ '<think>' if thinking else '</think>' }}{%- endif -%}
"""

HARMONY = """\
{%- macro render_tools(tools) -%}
    {{- "## functions\\n\\nnamespace functions {\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\ntype " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\\n" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {{- name }}{%- if name not in (tool.parameters.required or []) %}{{ "?" }}{%- endif %}{{ ": " }}
                {{- spec.enum | map('tojson') | join(' | ') if spec.enum else spec.type }}{{ ",\\n" }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else %}
            {{- "() => any;\\n\\n" }}
        {%- endif %}
    {%- endfor %}
    {{- "} // namespace functions" }}
{%- endmacro -%}
{{- "<|start|>system<|message|>You are a language model.\\n" }}
{{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
{{- "Reasoning: " + reasoning_effort + "\\n\\n# Valid channels: analysis, commentary, final.<|end|>" }}
{%- if messages[0].role in ["developer", "system"] %}
    {%- set developer_message = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|># Instructions\\n\\n" ~ developer_message }}
    {%- if tools %}{{- "\\n\\n# Tools\\n\\n" }}{{- render_tools(tools) }}{%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if loop.last and not add_generation_prompt and message.thinking %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {%- generation %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content }}
        {%- endgeneration %}
        {{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

_CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

_LLAMA2 = """\
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' %}
    {%- elif message.role == 'user' %}
        {{- bos_token + '[INST] ' + ns.system + message.content | trim + ' [/INST]' }}
        {%- set ns.system = '' %}
    {%- else %}
        {{- ' ' + message.content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}"""

_LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

_GEMMA = """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content | trim + '\\n\\n' %}
    {%- else %}
        {%- set role = 'model' if message.role == 'assistant' else message.role %}
        {{- '<start_of_turn>' + role + '\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' }}
        {%- set ns.system = '' %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

PLAIN = {"chatml": _CHATML, "gemma": _GEMMA, "llama2": _LLAMA2, "llama3": _LLAMA3}
TEMPLATES = {
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "phi": PHI,
    "deepseek": DEEPSEEK,
    "harmony": HARMONY,
    **{f"plain {name}": text for name, text in PLAIN.items()},
}


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, reasoning: str = "") -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning)


def system(text: str) -> Message:
    return Message(role="system", content=text)


CONVERSATIONS = {
    "one question": [user("What is the capital of Peru?")],
    "system": [system("Be brief."), user("Hi")],
    "several turns": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "system and turns": [system("Be brief.\n"), user("a"), assistant("b"), user("c")],
    "reasoning in the history": [user("a"), assistant("b", "because"), user("c"), assistant("d", "\nhm\n"), user("e")],
    "reasoning in the text": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")],
    "ends with an answer": [user("a"), assistant("b", "why")],
    "odd whitespace": [user("  \t a\r\n\n "), assistant("\n\n  b \u00a0\u3000"), user("\n")],
    "unicode": [system("Réponds en 日本語 🗾"), user("שלום 👨‍👩‍👧‍👦 e\u0301 \ufeff\u2028"), assistant("ᚠ"), user("𓀀")],
    "markup": [user("{{ 7 * 7 }} {% raw %} <b>&amp;</b> 'quotes' \"more\" \\n"), assistant("${x}"), user("%s {0}")],
    "empty": [user(""), assistant(""), user("")],
    "tool response": [user("a"), assistant("b"), Message(role="tool", content='{"x": 1}'), user("<tool_response>")],
    "no alternation": [user("a"), user("b"), assistant("c"), assistant("d")],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather in “any” place <now>.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "unit": {"type": "string", "enum": ["°C", "°F"]}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "Nothing."}},
]

THINK = {
    "auto": {},
    "on": {"enable_thinking": True, "thinking": True},
    "off": {"enable_thinking": False, "thinking": False},
    "high": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
}


@pytest.fixture(scope="module")
def peer() -> PreTrainedTokenizerFast:
    """transformers' own renderer."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), bos_token="<s>", eos_token="</s>")


def plain(message: Message) -> dict[str, str]:
    reasoning = {"reasoning_content": message.reasoning, "thinking": message.reasoning} if message.reasoning else {}
    return {"role": message.role, "content": message.content, **reasoning}


def outcome_of_peer(peer: PreTrainedTokenizerFast, template: str, messages: list[Message], **kwargs: Any) -> str:
    try:
        return str(
            peer.apply_chat_template([plain(m) for m in messages], chat_template=template, tokenize=False, **kwargs)
        )
    except Exception:
        return "refused"


def outcome(template: str, messages: list[Message], **kwargs: Any) -> str:
    try:
        return render(template, messages, bos_token="<s>", eos_token="</s>", **kwargs).text
    except TemplateError:
        return "refused"


# --- golden renders ---


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_equal_those_of_transformers(peer: PreTrainedTokenizerFast, name: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    for add_generation_prompt in (True, False):
        expected = outcome_of_peer(peer, TEMPLATES[name], messages, add_generation_prompt=add_generation_prompt)
        assert (expected == "refused") is (name == "mistral" and conversation in ("no alternation", "tool response"))
        assert outcome(TEMPLATES[name], messages, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_renders_of_the_real_qwen3_template_equal_those_of_transformers(
    peer: PreTrainedTokenizerFast, shared_data: Path, conversation: str
) -> None:
    template = template_of(shared_data / "tokenizers" / "qwen3")
    messages = CONVERSATIONS[conversation]
    for think, variables in THINK.items():
        for tools in (None, TOOLS):
            expected = outcome_of_peer(peer, template, messages, add_generation_prompt=True, tools=tools, **variables)
            assert expected != "refused"
            assert outcome(template, messages, think=think, tools=tools) == expected


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_renders_of_the_demo_template_equal_those_of_transformers(
    peer: PreTrainedTokenizerFast, demo_template: str, conversation: str
) -> None:
    messages = CONVERSATIONS[conversation]
    expected = outcome_of_peer(peer, demo_template, messages, add_generation_prompt=True)
    assert expected != "refused"
    assert outcome(demo_template, messages) == expected


def template_of(directory: Path) -> str:
    return str(json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"])


@pytest.fixture(scope="module")
def demo_template(demo_directory: Path, request: pytest.FixtureRequest) -> str:
    if (demo_directory / "tokenizer_config.json").is_file():
        return template_of(demo_directory)
    return template_of(request.getfixturevalue("shared_data").parent / "demo-model")


@pytest.mark.parametrize("think", THINK)
@pytest.mark.parametrize("name", ["deepseek", "harmony", "llama3"])
def test_thinking_and_tools_reach_the_template(peer: PreTrainedTokenizerFast, name: str, think: str) -> None:
    messages = CONVERSATIONS["reasoning in the history"]
    effort = {"reasoning_effort": "low"} if (name, think) == ("harmony", "off") else {}  # the least that it knows
    variables = {**THINK[think], **effort}
    expected = outcome_of_peer(peer, TEMPLATES[name], messages, add_generation_prompt=True, tools=TOOLS, **variables)
    assert expected != "refused"
    assert outcome(TEMPLATES[name], messages, think=think, tools=TOOLS) == expected


def test_thinking_changes_what_it_should(shared_data: Path) -> None:
    template = template_of(shared_data / "tokenizers" / "qwen3")
    assert outcome(template, [user("a")], think="off").endswith("assistant\n<think>\n\n</think>\n\n")
    assert outcome(template, [user("a")], think="on").endswith("assistant\n")


@pytest.mark.parametrize(("think", "effort"), [("off", "low"), ("low", "low"), ("auto", "medium"), ("high", "high")])
def test_a_model_that_always_thinks_does_so_as_little_as_it_can(think: str, effort: str) -> None:
    assert f"Reasoning: {effort}\n" in outcome(HARMONY, [user("a")], think=think)


texts = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n<>|{}%'\"")), max_size=20
)


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=texts, reasoning=texts),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([name for name in TEMPLATES if name != "llama3"]),
    st.booleans(),
)
def test_any_conversation_renders_as_in_transformers(
    peer: PreTrainedTokenizerFast, messages: list[Message], name: str, add_generation_prompt: bool
) -> None:
    expected = outcome_of_peer(peer, TEMPLATES[name], messages, add_generation_prompt=add_generation_prompt)
    assert outcome(TEMPLATES[name], messages, add_generation_prompt=add_generation_prompt) == expected


FRAGMENTS = [
    "{{ messages | map(attribute='content') | join(', ') | upper }}",
    "{{ messages | rejectattr('role', 'eq', 'user') | list | length }}",
    "{{ messages[-1].content | default('x', true) | replace('a', 'b') | title | capitalize }}",
    "{{ {'b': 1, 'a': [1, 2.5, none, true, 'é<']} | tojson }}{{ [1, {'x': 'y'}] | tojson(indent=2) }}",
    "{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1}.items() | list }}{{ ({'a': 1} | items | first)[0] }}",
    "{{ '%s-%03d' % ('a', 7) }}{{ '{:>5}|{x!r}'.format('a', x='b') }}{{ '%.2f' | format(1.005) }}",
    "{{ [3, 1, 2] | sort | join }}{{ [1, 2, 2] | unique | list }}{{ [1, 2] | sum }}{{ [1, 5] | max }}{{ (1, 2)[1] }}",
    "{{ 7 // 2 }}{{ 7 / 2 }}{{ 2 ** 10 }}{{ -3 % 5 }}{{ 'ab' * 3 }}{{ [1] * 2 + [3] }}{{ 1.5 | round | int }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' x '.strip() }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ 'abc' | reverse }}",
    "{{ 'a\nb'.splitlines() }}{{ 'abc'.find('c') }}{{ 'abc'.startswith('ab') }}{{ 'a-b'.rsplit('-', 1) }}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ loop.index }}/{{ loop.length }}{{ a + b }}{{ loop.cycle('x', 'y') }}"
    "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.changed(a) }}{% endfor %}",
    "{% for x in range(10) if x is odd %}{% if x > 6 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in [] %}{% else %}none{% endfor %}{% set y %}a{{ 1 }}{% endset %}{{ y }}",
    "{% with z = 3 %}{{ z }}{% endwith %}{{ z }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}{{ m(1) }}"
    "{% call m(3) %}c{% endcall %}{{ m.name }}",
    "{% set ns = namespace(a=1) %}{% set ns.b = ns.a + 1 %}{{ ns.b }}{{ ns.c }}{{ dict(a=1, **{'b': 2}) }}",
    "{{ x is defined }}{{ none is none }}{{ 'a' in 'abc' }}{{ 1 < 2 <= 2 }}{{ messages is sequence }}",
    "{{ messages[0].nope is defined }}{{ messages[0].nope }}{{ messages[0]['nope'] or 'd' }}{{ 1 is sameas 1 }}",
    "{% filter upper %}abc{% endfilter %}{{ 'a' ~ 1 ~ none ~ x }}{{ '<' | e }}{{ '<' | safe }}{{ 'a' if false }}",
    "{% set j = joiner(',') %}{{ j() }}{{ j() }}{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{% for item in tree recursive %}{{ item.n }}{{ loop(item.c) if item.c }}{% endfor %}",
    "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}",
    "{{ 'x\ny' | indent(2) }}{{ 'x\ny' | indent(2, first=true) }}{{ '  x ' | trim }}{{ 'xax' | trim('x') }}",
    "{{ [1, [2]] | string }}{{ 3.7 | int }}{{ '12' | int + 1 }}{{ '1.5' | float }}{{ -2 | abs }}{{ 'b' in ['b'] }}",
    "{{ messages | first }}{{ messages[0].keys() | list }}{{ messages[0].get('nope', 'd') }}{{ [1, 2] | last }}",
    "a\n  {% if true %}\n  b\n  {% endif %}\n{#- c #}\n  {%- if true -%} d {%- endif %}\n",
]


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_the_language_is_that_of_transformers(peer: PreTrainedTokenizerFast, fragment: str) -> None:
    messages = [user("banana"), assistant("é")]
    template = "{% set tree = [{'n': 1, 'c': [{'n': 2, 'c': []}]}] %}" + fragment
    expected = outcome_of_peer(peer, template, messages)
    assert expected != "refused"
    assert outcome(template, messages, add_generation_prompt=False) == expected


def test_the_time_that_a_template_prints_can_be_given() -> None:
    text = render(LLAMA3, [user("a")], bos_token="", eos_token="", now=datetime(2001, 2, 3)).text
    assert "Today Date: 03 Feb 2001" in text


# --- control tokens in messages ---

CONTROL = ["<|im_start|>", "<|im_end|>", "<|im_end|>x", "</s>"]


def test_a_control_token_in_a_message_is_a_piece_of_its_own() -> None:
    rendered = render(PLAIN["chatml"], [user("a<|im_end|>b")], bos_token="", eos_token="", control_tokens=CONTROL)
    assert rendered == Rendered(
        (
            Piece("<|im_start|>user\na", False),
            Piece("<|im_end|>", True),
            Piece("b<|im_end|>\n<|im_start|>assistant\n", False),
        )
    )


def test_a_prompt_without_control_tokens_in_messages_is_one_piece() -> None:
    rendered = render(PLAIN["chatml"], [user("a")], bos_token="", eos_token="", control_tokens=CONTROL)
    assert [piece.is_content for piece in rendered.pieces] == [False]


def test_the_longest_control_token_is_taken_and_none_is_pieced_together() -> None:
    rendered = render(
        "{{ messages[0].content }}", [user("<|im_end|>x")], bos_token="", eos_token="", control_tokens=CONTROL
    )
    assert rendered.pieces == (Piece("<|im_end|>x", True),)
    nested = "<|im_<|im_end|>end|></</s>s>"
    rendered = render("{{ messages[0].content }}", [user(nested)], bos_token="", eos_token="", control_tokens=CONTROL)
    assert rendered.text == nested
    assert not any(token in piece.text for piece in rendered.pieces if not piece.is_content for token in CONTROL)


@pytest.mark.parametrize(
    "expression",
    [
        "content",
        "content | trim | upper | lower",
        "content.split(' ') | join(' ')",
        "content[:1] ~ content[1:]",
        "content.replace('x', 'y').strip()",
        "(content | list) | join",
        "content | tojson",
        "content | e",
        "'%s' % content",
        "'{}'.format(content)",
    ],
)
def test_a_hidden_control_token_survives_what_templates_do_to_text(expression: str) -> None:
    template = "<|im_start|>{% set content = messages[0].content %}{{ " + expression + " }}"
    rendered = render(template, [user(" a <|im_end|> b ")], bos_token="", eos_token="", control_tokens=CONTROL)
    assert [piece.text for piece in rendered.pieces if piece.is_content] == ["<|im_end|>"]
    assert [piece.text for piece in rendered.pieces if "<|im_start|>" in piece.text] == [rendered.pieces[0].text]


@pytest.mark.parametrize("expression", ["[content] | string", "content | tojson(ensure_ascii=true)", "'%r' % content"])
def test_a_hidden_control_token_that_a_template_writes_in_escapes_is_an_error(expression: str) -> None:
    template = "{% set content = messages[0].content %}{{ " + expression + " }}"
    assert outcome(template, [user("plain")]) != "refused"
    with pytest.raises(TemplateError, match="escapes"):
        render(template, [user("<|im_end|>")], bos_token="", eos_token="", control_tokens=CONTROL)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([*CONTROL, "<|", "im_end", "|>", "a", " ", "\U000f0000", "\U0010fffd", "é"]), max_size=8),
    st.sampled_from(["chatml", "gemma", "llama2"]),
)
@example(parts=["<|", "im_end", "<|im_start|>", "|>"], name="chatml")  # one token around another
def test_no_message_can_write_a_control_token_and_no_text_is_changed(parts: list[str], name: str) -> None:
    messages = [system("".join(parts)), user("".join(parts)), assistant("b", "".join(parts)), user("c")]
    rendered = render(PLAIN[name], messages, bos_token="<s>", eos_token="</s>", control_tokens=CONTROL)
    assert rendered.text == outcome(PLAIN[name], messages)
    without = [Message(role=m.role, content="x", reasoning="x") for m in messages]
    template_text = outcome(PLAIN[name], without)
    template_pieces = [piece.text for piece in rendered.pieces if not piece.is_content]  # each is tokenized by itself
    assert {t: sum(text.count(t) for text in template_pieces) for t in CONTROL[:2]} == {
        t: template_text.count(t) for t in CONTROL[:2]
    }


# --- hostile templates ---

SSTI = {
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "config": "{{ config.__class__.__init__.__globals__['os'].popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "namespace": "{{ namespace.__init__.__globals__.os.popen('id').read() }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "self": "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.popen('id').read() }}",
    "self init": "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "undefined": "{{ undefined_name.__class__.__init__.__globals__ }}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "map attr": "{{ ['']|map(attribute='__class__.__mro__')|list }}",
    "getitem": "{{ ''['__class__']['__mro__'] }}",
    "concatenated name": "{{ ''['__cla' ~ 'ss__'] }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format map": "{{ '{a.__class__.__init__.__globals__}'.format_map({'a': raise_exception}) }}",
    "format by reference": "{{ ['{0.__class__}'.format][0]('') }}",
    "function globals": "{{ raise_exception.__globals__ }}",
    "function code": "{{ strftime_now.__code__.co_consts }}{{ strftime_now.__closure__ }}",
    "generator frame": "{{ (messages|map(attribute='role')).gi_frame.f_globals }}",
    "macro": "{% macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func }}{{ m._environment }}",
    "loop": "{% for x in [1] %}{{ loop._iterable }}{{ loop._undefined }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "class attributes": "{{ dict.mro }}{{ [].sort }}{{ ''.encode }}{{ (1).real }}{{ raise_exception.func }}",
    "dict": "{{ dict.__base__.__subclasses__() }}{{ dict.mro() }}",
    "range": "{{ range.__class__ }}{{ range(1).__reduce__() }}",
    "exception": "{{ raise_exception('x').__traceback__ }}",
    "context": "{{ context.environment }}{{ environment.globals }}",
    "import": "{% import 'os' as os %}{{ os.popen('id') }}",
    "from": "{% from 'x' import y %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "do": "{% do messages.append({}) %}",
    "mutation": "{{ messages.append({'role': 'user', 'content': 'forged'}) }}{{ messages[1].content }}",
    "dict mutation": "{{ messages[0].update({'content': 'forged'}) }}{{ messages[0].content }}",
    "clear": "{{ messages.clear() }}forged",
    "namespace dunder": "{{ namespace(__class__=1) }}",
    "namespace set": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "str subclass": "{{ messages[0].content.encode('utf-8').decode('idna') }}",
    "internal names": "{{ 1 | tick }}{{ environment.sandboxed }}",
    "autoescape": "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "debug": "{% debug %}",
    "trans": "{% trans %}x{% endtrans %}",
}
LEAKS = (
    "class",
    "uid=",
    "root:",
    "module",
    "function",
    "builtin",
    "forged",
    "<frame",
    "0x",
    "Environment",
    "object at",
)


@pytest.mark.parametrize("payload", SSTI.values(), ids=SSTI.keys())
def test_a_template_cannot_reach_out_of_the_sandbox(payload: str) -> None:
    messages = [user("hi")]
    text = outcome(payload, messages)
    assert text == "refused" or not any(leak in text for leak in LEAKS)
    assert messages == [user("hi")]


def loops(body: str, start: str = "") -> str:
    return "{% set ns = namespace(x=" + (start or "0") + ") %}{% for i in range(100000) %}" + body + "{% endfor %}"


TEXT = "{% set x = 'a' * 4000000 %}"

ATTACKS = {
    "a huge range": "{% for i in range(10**9) %}{% endfor %}",
    "a list of a huge range": "{{ range(10**9) | list | length }}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "loops that filter all": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops over a list": "{% set x = range(99999) | list %}{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}",
    "loops that filter a list": "{% set x = range(99999) | list %}{% for i in x %}{% for j in x if nothing %}"
    "{% endfor %}{% endfor %}",
    "a recursive loop": "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "a recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a branching macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion through caller": "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}"
    "{% endcall %}{% endmacro %}{{ g() }}",
    "text times a number": "{{ 'a' * 10**12 }}",
    "list times a number": "{{ [0] * 10**12 }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "squaring": loops("{% set ns.x = ns.x * ns.x %}", "10"),
    "doubling numbers": loops("{% set ns.x = ns.x + ns.x %}", "10"),
    "doubling text": loops("{% set ns.x = ns.x + ns.x %}", "'aaaaaaaa'"),
    "doubling text by ~": loops("{% set ns.x = ns.x ~ ns.x %}", "'aaaaaaaa'"),
    "doubling text in a set block": loops(
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}", "'aaaaaaaa'"
    ),
    "a billion laughs": loops("{% set ns.x = [ns.x, ns.x, ns.x] %}", "['ha']") + "{{ ns.x }}",
    "laughs in JSON": loops("{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{}") + "{{ ns.x | tojson }}",
    "laughs as a key": loops("{% set ns.x = (ns.x, ns.x) %}", "(1,)") + "{{ {ns.x: 1} }}",
    "laughs by dict()": loops("{% set ns.x = dict(a=ns.x, b=ns.x) %}", "{}") + "{{ ns.x }}",
    "laughs by map": loops("{% set ns.x = range(999)|map(attribute='q', default=ns.x)|list %}", "'ha'") + "{{ ns.x }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}x{{ '\t'.expandtabs(10**10) | length }}",
    "the center filter": "{{ 'a' | center(10**10) }}",
    "a wide format": "{{ '{:>10000000000}'.format('a') }}",
    "a format within a format": "{{ '{:{w}}'.format('a', w=10**10) }}",
    "many fields": "{{ ('{0}' * 1000).format('a' * 1000000) }}",
    "a wide format_map": "{{ '{a:>10000000000}'.format_map({'a': 1}) }}",
    "a wide %": "{{ '%10000000000d' % 1 }}",
    "a %*": "{{ '%*d' % (10**10, 1) }}",
    "a % pattern that takes quadratic time": "{{ ('%(' * 4000000) % 1 }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "the replace filter": "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
    "join": "{{ ('b' * 1000000).join(['a'] * 100000) }}",
    "the join filter": "{{ range(100000) | join('b' * 1000000) }}",
    "split": "{{ ('a ' * 4000000).split() | length }}",
    "the list of a text": "{{ ('a' * 8000000) | list | length }}",
    "indent": "{{ ('a\n' * 1000000) | indent(1000) }}",
    "JSON indent": "{{ [[[1]]] | tojson(indent=10**9) }}",
    "JSON separators": "{{ ([1] * 100000) | tojson(separators=('x' * 1000000, ':')) }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "the sum of lists": "{{ ([[1]] * 100000) | sum(start=[]) | length }}",
    "batch": "{{ [1] | batch(10**9, 1) | list }}",
    "wordwrap": "{{ ('a' * 1000000) | wordwrap(1) }}",
    "lipsum": "{{ lipsum(n=10**7) }}",
    "rfind": TEXT + "{{ x.rfind('ab' + 'a' * 2000000) }}",
    "rsplit": TEXT + "{{ x.rsplit('ab' + 'a' * 2000000) | length }}",
    "strip": TEXT + "{{ x.strip('b' * 1000000 + 'a') }}",
    "trim": TEXT + "{{ x | trim('b' * 1000000 + 'a') }}",
    "searching for ever": TEXT + "{% set y = 'a' * 2000000 + 'b' %}" + loops("{{ y in x }}{{ x.find(y) }}"),
    "comparing for ever": TEXT + "{% set y = 'a' * 3999999 + 'b' %}{{ [" + "x == y, " * 4000 + "] }}",
    "sorting long texts": TEXT + "{{ ([x + 'b', x + 'c'] * 50000) | sort | length }}",
    "sorting for ever": loops("{{ range(100000) | sort(reverse=true) | length }}"),
    "slicing for ever": "{% set x = range(99999) | list %}" + loops("{% set y = x[::-1] %}"),
    "holding everything": loops("{% set ns.x = namespace(before=ns.x, text='a' * 8000000 ~ i) %}"),
    "constant text for ever": loops("x" * 100_000),
    "constant text in a macro": "{% macro f() %}" + "x" * 100_000 + "{% endmacro %}" + loops("{% set y = f() %}"),
    "constant text in a set block": loops("{% set y %}" + "x" * 100_000 + "{% endset %}"),
    "a long literal for ever": loops("{% set y = [" + "1," * 15_000 + "] %}"),
    "spreading arguments": loops("{{ loop.cycle(*range(100000)) }}"),
    "remembering changes": "{% set x = range(99999) | list %}" + loops("{{ loop.changed(x) }}"),
    "a deep list": loops("{% set ns.x = [ns.x] %}"),
    "a number from hexadecimal": "{{ ('f' * 8000000) | int(0, 16) }}",
    "a number in hexadecimal": "{{ 0x" + "f" * 200_000 + " }}",
    "a long number": "{{ " + "9" * 200_000 + " }}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "brackets": "{{ " + "[" * 200_000,
    "negations": "{{ " + "not " * 60_000 + "1 }}",
    "a long sum": "{{ 1" + "+1" * 120_000 + " }}",
    "open ifs": "{% if x %}" * 20_000,
    "nested ifs": "{% if x %}" * 500 + "{% endif %}" * 500,
    "nested loops without end": "{% for x in y %}" * 400 + "{% endfor %}" * 400,
    "many elifs": "{% if x %}" + "{% elif x %}" * 20_000 + "{% endif %}",
    "many expressions": "{{x}}" * 50_000,
    "many attributes": "{{ x" + ".a" * 9_000 + " }}",
    "many filters": "{{ x" + "|e" * 9_000 + " }}",
    "many braces": "{{" * 120_000,
    "many macros": "{% macro a() %}" * 500 + "{% endmacro %}" * 500,
    "an error message without end": "{{ raise_exception('a' * 8000000) }}",
    "a megabyte": "a" * 2**20,
}
# Those that would take memory rather than time.
GREEDY = [
    name
    for name in ATTACKS
    if name.startswith(("doubling", "laughs", "a billion", "text", "list", "a wide", "many fields", "JSON", "a deep"))
    or name in ("replace", "join", "the join filter", "split", "indent", "the list of a text", "holding everything")
    or name
    in ("ljust", "zfill", "brackets", "parentheses", "open ifs", "a list of a huge range", "a power", "squaring")
]
# Two seconds are the limit; the rest is for a busy machine and for compiling.
SECONDS = 30


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_template_cannot_take_time_or_memory_without_end(attack: str) -> None:
    started = time.perf_counter()
    with pytest.raises(TemplateError) as raised:
        render(attack, [user("hi")], bos_token="", eos_token="")
    assert time.perf_counter() - started < SECONDS
    assert len(raised.value.message) < 2000
    assert raised.value.hint


def test_the_attacks_stay_within_a_gigabyte_of_address_space() -> None:
    program = (
        "import json, resource, sys\n"
        "from runner.errors import TemplateError\n"
        "from runner.templates import render\n"
        "from runner.types import Message\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "for name, attack in json.load(sys.stdin).items():\n"
        "    try:\n"
        "        render(attack, [Message(role='user', content='hi')], bos_token='', eos_token='')\n"
        "        print('came through:', name)\n"
        "    except TemplateError as error:\n"
        "        if isinstance(error.__cause__, MemoryError):\n"
        "            print('took the memory:', name)\n"
    )
    attacks = json.dumps({name: ATTACKS[name] for name in GREEDY})
    done = subprocess.run([sys.executable, "-c", program], input=attacks, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["loops over a list", "loops that filter a list"])
def test_loops_are_stopped_by_counting_so_that_every_machine_stops_them_alike(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.templates.budget.MAX_SECONDS", 60.0)  # counting comes first where nothing else runs
    with pytest.raises(TemplateError, match="steps of work"):
        render(ATTACKS[name], [user("hi")], bos_token="", eos_token="")


def test_work_is_bounded_by_the_clock_as_well() -> None:
    now = [0.0]
    budget = Budget(clock=lambda: now[0])
    budget.spend(1)
    now[0] = MAX_SECONDS + 0.1
    with pytest.raises(LimitExceeded, match="runs for more than"):
        budget.spend(1)
    with pytest.raises(LimitExceeded, match="steps of work"):
        Budget(clock=lambda: 0.0).spend(MAX_WORK + 1)


def test_the_largest_templates_that_are_allowed_render() -> None:
    text = "x" * (MAX_SOURCE_CHARS - 20)
    assert outcome("{{ 1 }}" + text, [user("a")]) == "1" + text
    assert outcome("{{ x }}" * (MAX_NODES // 4), [user("a")]) == ""


def test_a_long_conversation_is_within_the_limits(shared_data: Path) -> None:
    template = template_of(shared_data / "tokenizers" / "qwen3")
    turns = [
        message for i in range(1500) for message in (user(f"question {i} " * 100), assistant("answer " * 100, "hm"))
    ]
    text = outcome(template, [*turns, user("end" * 500_000)])
    assert text.count("<|im_start|>") == 3002


# --- errors ---


@pytest.mark.parametrize(
    ("template", "message", "hint"),
    [
        (None, "has no chat template", "runner run --raw"),
        (" \n", "has no chat template", "runner run --raw"),
        ("{{ raise_exception('No system please.') }}", "refuses these messages: No system please.", "conversation"),
        ("a\nb\n{{ 1 +", r"broken \(line 3\): unexpected", "another version"),
        ("\n\n\n{{ nothing.at.all }}", r"broken \(line 4\): 'nothing' is undefined", "another version"),
        ("{% for x in 5 %}\n{% endfor %}", r"broken \(line 1\): 'int' object is not iterable", "another version"),
        ("{{ 1 / 0 }}", "division by zero", "another version"),
        ("{{ messages | nope }}", "No filter named 'nope'", "another version"),
        ("\n{{ ''.__class__.x }}", r"stopped \(line 2\): access to attribute '__class__'", "hostile"),
        ("{% include 'x' %}", "'include' has no place", "hostile"),
        ("{{ 'a' * 10**9 }}", "stopped: it makes a text of more than", "hostile"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(template: str | None, message: str, hint: str) -> None:
    with pytest.raises(TemplateError, match=message) as raised:
        render(template, [user("a")], bos_token="", eos_token="")
    assert hint in raised.value.hint


# --- reasoning markers ---


@pytest.mark.parametrize(
    ("template", "open_", "close"),
    [
        ("{{ '<think>' }}{{ '</think>' }}", "<think>", "</think>"),
        ("{{ content.split('</think>')[-1] }}", "<think>", "</think>"),
        (DEEPSEEK, "<think>", "</think>"),
        ("[THINK]x[/THINK]", "[THINK]", "[/THINK]"),
        (HARMONY, "<|channel|>analysis<|message|>", "<|end|>"),
        ("{{- '<|channel>thought\\n<channel|>' -}}", "<|channel>thought", "<channel|>"),
        ("{% set a = '<seed:think>' %}{% set b = '</seed:think>' %}", "<seed:think>", "</seed:think>"),
        ("<|START_THINKING|><|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    ],
)
def test_reasoning_markers_are_found_in_the_template(template: str, open_: str, close: str) -> None:
    markers = reasoning_markers(template)
    assert markers is not None
    assert (markers.open, markers.close) == (open_, close)
    assert close in markers.closing_text


def test_templates_without_thinking_have_no_markers() -> None:
    assert reasoning_markers(None) is None
    assert [name for name in TEMPLATES if reasoning_markers(TEMPLATES[name])] == ["deepseek", "harmony"]


@pytest.mark.parametrize(
    ("prompt", "template", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", "</think>", True),
        ("<|im_start|>assistant\n", "</think>", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "</think>", False),
        ("<|turn>model\n<|channel>thought\n", "<|channel>thought<channel|>", True),
        ("<|turn>model\n<|channel>thought\n<channel|>", "<|channel>thought<channel|>", False),
        ("<|start|>assistant", HARMONY, False),
        ("<|start|>assistant<|channel|>analysis<|message|>", HARMONY, True),
    ],
)
def test_a_prompt_that_opens_the_thought_is_seen(prompt: str, template: str, expected: bool) -> None:
    markers = reasoning_markers(template)
    assert markers is not None
    assert starts_in_reasoning(prompt, markers) is expected
