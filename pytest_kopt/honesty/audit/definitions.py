"""Definitions and imports: what a name in a kernel's file comes to stand for."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Sequence

from pytest_kopt.honesty.audit import vocabulary as known
from pytest_kopt.honesty.audit.calls import Function
from pytest_kopt.honesty.audit.expressions import Expressions
from pytest_kopt.honesty.audit.machine import Activation
from pytest_kopt.honesty.audit.trace import Class
from pytest_kopt.honesty.audit.values import Object, Value, join


class Definitions(Expressions):
    """Functions with their decorators, classes, and imports."""

    @abstractmethod
    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Follow statements; say whether they always leave the block that holds them."""

    def make_function(self, node: Function) -> Value:
        obj = Object(
            "function", self.epoch, definition=node, frame=self.here.frame, path=self.here.path
        )
        spec = node.args
        named = [*spec.posonlyargs, *spec.args]
        for argument, default in zip(reversed(named), reversed(spec.defaults), strict=False):
            obj.fields[f"default {argument.arg}"] = self.evaluate(default)
        for argument, optional in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if optional is not None:
                obj.fields[f"default {argument.arg}"] = self.evaluate(optional)
        self.unseen[obj] = None
        return Value(objects=frozenset({obj}))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        value = self.make_function(node)
        (obj,) = value.objects
        for decorator in reversed(node.decorator_list):
            value = self._decorated(value, obj, self.evaluate(decorator), decorator)
        frame = self.here.frame
        frame.fields[node.name] = value

    def _decorated(self, value: Value, obj: Object, by: Value, node: ast.expr) -> Value:
        flags = {
            "builtins.staticmethod": "static",
            "builtins.classmethod": "class method",
            "builtins.property": "property",
        }
        for name in by.externals:
            plain = name.removesuffix("()")
            package, last = plain.partition(".")[0], plain.rpartition(".")[2]
            if name in flags:
                obj.flags.add(flags[name])
            if package in known.DEVICE_PACKAGES or last in known.DEVICE_DECORATORS:
                obj.flags.add("device")
                self.unseen.pop(obj, None)
                return value
        if by.externals & known.MEMOISERS:
            obj.flags.add("memoised")
        result = self.call(by, [value], {}, node)
        return result if result.objects else value

    def _class(self, node: ast.ClassDef) -> None:
        bases = [self.evaluate(base) for base in node.bases]
        classes = tuple(o for base in bases for o in base.objects if o.kind == "class")
        obj = Object(
            "class",
            self.epoch,
            definition=node,
            frame=self.here.frame,
            path=self.here.path,
            classes=classes,
        )
        externals = frozenset().union(*(base.externals for base in bases))
        obj.flags |= externals
        for keyword in node.keywords:
            self.evaluate(keyword.value)
        self.stack.append(Activation(obj, self.here.path, node.name))
        try:
            self.run(node.body)
        finally:
            self.stack.pop()
        self.trace.classes.append(Class(obj, externals, self.site(node)))
        value = Value(objects=frozenset({obj}))
        for decorator in reversed(node.decorator_list):
            made = self.call(self.evaluate(decorator), [value], {}, decorator)
            value = made if made.objects else value
        self.here.frame.fields[node.name] = join(value, Value(objects=frozenset({obj})))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = self.import_module(alias.name, node)
            if alias.asname:
                self.assign(ast.Name(alias.asname), module)
            else:
                top = alias.name.partition(".")[0]
                plain = module if top == alias.name else self.import_module(top, node)
                self.assign(ast.Name(top), plain)

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.here.path.split("/")[: -node.level]
            base = ".".join([*parts, *([base] if base else [])])
        module = self.import_module(base, node)
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name == "*":
                for obj in module.objects:
                    self.here.frame.fields.update(obj.fields)
                continue
            found = self.attribute(module, alias.name, node)
            if not found.objects - _bound_only(found) and not found.externals:
                found = self.import_module(f"{base}.{alias.name}", node)
            self.assign(ast.Name(name), found)


def _bound_only(value: Value) -> frozenset[Object]:
    return frozenset(o for o in value.objects if o.kind == "bound")
