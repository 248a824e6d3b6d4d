"""The page of the server's description: every operation, its fields and its errors, as plain HTML.

It is made from the OpenAPI description, has no script, and loads nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
code, pre { font: 0.875em/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 0.75rem; border: 1px solid GrayText; border-radius: 4px; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0; }
tr { border-bottom: 1px solid GrayText; }
h2 { margin-top: 2.5rem; }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{description}</p>
<p>For programs: <a href="/openapi.json">the OpenAPI description</a>.</p>
{operations}
</main>
</body>
</html>
"""


def build_page(schema: Mapping[str, Any]) -> str:
    """The page for an OpenAPI description."""
    operations = (
        _operation(schema, method, path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    )
    info = schema["info"]
    return PAGE.format(
        title=escape(f"{info['title']} {info['version']}"),
        description=escape(info.get("description", "")),
        style=STYLE,
        operations="\n".join(operations),
    )


def _operation(schema: Mapping[str, Any], method: str, path: str, about: Mapping[str, Any]) -> str:
    name = f"{method.upper()} {path}"
    parts = [f"<h2 id='{escape(name, quote=True)}'><code>{escape(name)}</code></h2>"]
    text = about.get("description") or about.get("summary", "")
    parts += [f"<p>{escape(part)}</p>" for part in text.split("\n\n")]
    content = about.get("requestBody", {}).get("content", {})
    if content:
        kinds = ", ".join(content)
        parts.append(f"<p>Body: {escape(kinds)}.</p>")
        parts.append(_fields(_resolve(schema, next(iter(content.values()))["schema"])))
    parts.append("<p>Answers:</p><table><tr><th>status</th><th>meaning</th><th>fields</th></tr>")
    parts += list(_answers(schema, about.get("responses", {})))
    parts.append("</table>")
    return "\n".join(parts)


def _fields(body: Mapping[str, Any]) -> str:
    rows = ["<table><tr><th>field</th><th>type</th><th>default</th><th>meaning</th></tr>"]
    required = body.get("required", [])
    for name, field in body.get("properties", {}).items():
        default = "required" if name in required else json.dumps(field.get("default"))
        cells = (f"<code>{escape(name)}</code>", _kind(field), escape(default))
        about = escape(" ".join(field.get("description", "").split()))
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, about)) + "</tr>")
    return "\n".join([*rows, "</table>"])


def _answers(schema: Mapping[str, Any], responses: Mapping[str, Any]) -> Iterator[str]:
    for status, response in responses.items():
        content: Mapping[str, Any] = next(iter(response.get("content", {}).values()), {})
        answer = _resolve(schema, content.get("schema", {}))
        fields = ", ".join(f"<code>{escape(name)}</code>" for name in answer.get("properties", {}))
        meaning = escape(response.get("description", ""))
        yield f"<tr><td>{escape(str(status))}</td><td>{meaning}</td><td>{fields}</td></tr>"


def _resolve(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, followed where it only refers to another; that of its items for a list."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return _resolve(schema, schema["components"]["schemas"][name])
    return _resolve(schema, node["items"]) if node.get("type") == "array" else node


def _kind(field: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    kinds = [_kind(one) for one in field.get("anyOf", ())]
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(escape(json.dumps(value)) for value in field["enum"])
    if "$ref" in field:
        return escape(field["$ref"].rpartition("/")[2])
    if field.get("type") == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_kind(items)}"
    return escape(str(field.get("type", "any")))
