"""/docs: the endpoint's routes and their fields, from its OpenAPI schema, as one plain page.

The page loads nothing, from here or elsewhere: no scripts, no fonts, no styles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from fastapi.responses import HTMLResponse

_PAGE = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
    """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
code, pre { font-family: monospace; background: #f3f3f3; }
pre { padding: .6em; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; border-top: 1px solid #ccc; padding: .3em .6em; }
</style></head><body>
<h1>{{ title }}</h1>
<p>Machines read <a href="openapi.json">openapi.json</a>.</p>
<ul>{% for route in routes %}
<li><a href="#{{ route.id }}"><code>{{ route.method }} {{ route.path }}</code></a></li>
{%- endfor %}</ul>
{% for route in routes %}
<h2 id="{{ route.id }}"><code>{{ route.method }} {{ route.path }}</code></h2>
<p>{{ route.text }}</p>
{% if route.fields %}<details><summary>Fields of the body</summary><table>
<tr><th>Field</th><th>Type</th><th>Meaning</th></tr>
{% for field in route.fields %}<tr><td><code>{{ field.name }}</code></td><td>{{ field.type }}</td>
<td>{{ field.text }}</td></tr>
{% endfor %}</table></details>{% endif %}
{% endfor %}</body></html>
"""
)
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def page(schema: Mapping[str, Any]) -> HTMLResponse:
    """Returns the page of an OpenAPI schema."""
    text = _PAGE.render(title=schema["info"]["title"], routes=list(_routes(schema)))
    return HTMLResponse(text, headers=_HEADERS)


def _routes(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield {
                "id": operation["operationId"],
                "method": method.upper(),
                "path": path,
                "text": operation.get("description", ""),
                "fields": list(_fields(schema, operation)),
            }


def _fields(schema: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    if "requestBody" not in operation:
        return
    [content] = operation["requestBody"]["content"].values()
    body = content["schema"]
    if "$ref" in body:
        body = schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]
    required = body.get("required", [])
    first = sorted(body["properties"], key=lambda name: name not in required)
    for name in first:
        field = body["properties"][name]
        text = field.get("description", "")
        if name in required:
            text = f"Required. {text}"
        elif field.get("default") not in (None, {}, []):
            text = f"{text} Default: {field['default']}.".strip()
        yield {"name": name, "type": _type(field), "text": text}


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return "object"
    if "anyOf" in field:
        kinds = (_type(each) for each in field["anyOf"])
        return " or ".join(kind for kind in dict.fromkeys(kinds) if kind != "null")
    if "enum" in field:
        return " or ".join(map(repr, field["enum"]))
    return str(field.get("type", "any"))
