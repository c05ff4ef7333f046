"""Decision policies as files: the presets next to this module, or one of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_kopt.decide.policy import Policy
from pytest_kopt.documents import load_yaml, validate
from pytest_kopt.errors import BadInput

_HERE = Path(__file__).parent
#: Keys that only earlier releases had, in the files of campaigns that are still to be opened.
_RETIRED = ("full_below_pct", "kernel_time")


def names() -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def load(name_or_path: str, root: Path = Path()) -> Policy:
    """Return a preset by name, or a policy file (YAML; keys not given come from its `base`).

    A file's path is relative to `root`. Raises BadInput for an unknown name, an unreadable file, an
    unknown key, an illegal value, or a file that calls itself by a preset's name.
    """
    if name_or_path in names():
        return validate(Policy, _preset(name_or_path), where=f"policy {name_or_path!r}")
    path = root / name_or_path
    if not path.is_file():
        raise BadInput(
            f"policy {name_or_path!r} is unknown",
            where="--kopt-policy",
            legal=[*names(), "a YAML file"],
        )
    document = load_yaml(path)
    base = document.pop("base", "primus")
    if base not in names():
        raise BadInput(f"base is {base!r}", where=str(path), legal=names())
    document.setdefault("name", path.stem)
    if document["name"] in names():
        raise BadInput(
            f"key 'name' is {document['name']!r}, the name of a preset",
            where=str(path),
            fix=f"choose a name of your own, none of {', '.join(names())}",
        )
    current = {key: value for key, value in document.items() if key not in _RETIRED}
    merged = _preset(base) | current
    if isinstance(document.get("remeasure"), dict):
        merged["remeasure"] = _preset(base)["remeasure"] | document["remeasure"]
    return validate(Policy, merged, where=str(path))


def _preset(name: str) -> dict[str, Any]:
    return load_yaml(_HERE / f"{name}.yaml")
