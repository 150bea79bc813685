"""JSON Schema of the router's configuration file, with the docstring of every field as its description.

The library makes the schema from the types; the words come from the source, where each field carries its meaning, unit
and default in a string below it. Editors with a YAML language server show them and complete keys.
"""

import ast
import inspect
import textwrap
from typing import Any

import msgspec

from gir.control.config import RouterConfig

SET_BY_ROUTER = ("version", "digest")
"""Fields of the policy that a file must not set."""


def config_schema() -> dict[str, Any]:
    """Schema of RouterConfig (draft 2020-12)."""
    (root,), components = msgspec.json.schema_components([RouterConfig], ref_template="#/$defs/{name}")
    words = {type_.__name__: _words_of(type_) for type_ in _structs(RouterConfig)}
    for name, component in components.items():
        described = words.get(name, {})
        for field, schema in component.get("properties", {}).items():
            if field in described:
                schema["description"] = described[field]
    for field in SET_BY_ROUTER:
        components["PolicySnapshot"]["properties"].pop(field, None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "GIR router configuration",
        **root,
        "$defs": components,
    }


def _structs(root: type) -> list[type]:
    """`root` and every struct its fields lead to."""
    found: dict[type, None] = {}
    todo: list[Any] = [msgspec.inspect.type_info(root)]
    while todo:
        one = todo.pop()
        if isinstance(one, msgspec.inspect.StructType):
            if one.cls in found:
                continue
            found[one.cls] = None
            todo += [field.type for field in one.fields]
        todo += [getattr(one, kind) for kind in ("item_type", "value_type", "type") if hasattr(one, kind)]
        todo += list(getattr(one, "types", ())) + list(getattr(one, "item_types", ()))
    return list(found)


def _words_of(type_: type) -> dict[str, str]:
    """Docstrings below the fields of a struct, by field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(type_))).body
    assert isinstance(tree, ast.ClassDef), "the source of a class is a class"
    words: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            words[field.target.id] = inspect.cleandoc(below.value.value)
    return words
