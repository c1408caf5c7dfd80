"""Prompts of published rerankers that answer yes or no, by name, as Jinja sources."""

from __future__ import annotations

#: Messages have the roles ``query`` and ``document``, and ``system`` for an instruction.
SCORE_TEMPLATES = {
    # As the model's card has it, and its instruction where a request has none.
    "qwen3-reranker": """\
{%- set roles = namespace(system="Given a web search query, retrieve relevant passages that \
answer the query", query="", document="") -%}
{%- for message in messages -%}
{%- if message.role == "system" -%}{%- set roles.system = message.content -%}
{%- elif message.role == "query" -%}{%- set roles.query = message.content -%}
{%- else -%}{%- set roles.document = message.content -%}{%- endif -%}
{%- endfor -%}
{{- "<|im_start|>system\\nJudge whether the Document meets the requirements based on the Query and \
the Instruct provided. Note that the answer can only be \\"yes\\" or \\"no\\".<|im_end|>\\n\
<|im_start|>user\\n<Instruct>: " -}}
{{- roles.system -}}
{{- "\\n<Query>: " -}}
{{- roles.query -}}
{{- "\\n<Document>: " -}}
{{- roles.document -}}
{{- "<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n" -}}
""",
}
