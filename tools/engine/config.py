"""Configuration files and `section.key=value` arguments to one frozen `Config`, and back to a file.

Order, later wins: defaults of the dataclasses, the file named by `base:` (and its own base), the file, the arguments.
Whatever is not understood stops the run with one line; nothing is ignored.
"""

import contextlib
import difflib
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin

import yaml
from errors import UserError

from engine.schema import KEYS, SECTIONS, Config, build, problems

ROOT = Path(__file__).resolve().parents[2]
COMMAND_LINE = "command line"
# First line of every file that save_config writes.
RESOLVED = "# Resolved configuration: every key, defaults included.\n"


class ConfigError(UserError):
    """A mistake in a configuration file or in a `section.key=value` argument."""


class _Setting(NamedTuple):
    value: Any
    source: str


def project_path(value: str) -> Path:
    """Absolute path of a path written in the configuration: relative ones start at the project's root."""
    if not value:
        raise ConfigError("a path in the configuration is empty; set it, for example data.val_dir=/data/imagenet/val")
    return ROOT / os.path.expanduser(value)


def load_config(path, overrides=(), *, record=None, source="") -> Config:
    """Read a YAML file, the files it names as `base:`, then `section.key=value` strings.

    `path` is relative to the working directory, `base:` to the file that holds it. record: dict full key -> value laid
    between file and arguments, source: where it is from, for messages. Raises ConfigError.
    """
    settings = _read_chain(Path(os.path.expanduser(path)))
    settings.update({name: _Setting(value, source) for name, value in (record or {}).items()})
    given = {}
    for text in overrides:
        given.update(_parse_override(text))
    # A target of one's own is judged on the set at hand, not on the one that the inherited target was measured on.
    if "val.target_acc" in given:
        settings.pop("val.target_images", None)
    settings.update(given)
    values = {name: key.default for name, key in KEYS.items()}
    values.update({name: _coerce(name, setting) for name, setting in settings.items()})
    for name, problem in problems(values):
        source = settings[name].source if name in settings else "default"
        raise ConfigError(f"{name}={_show(values[name])} ({source}): {problem}")
    return build(values)


def save_config(config: Config, path) -> None:
    """Write every key with its value; `load_config(path)` gives an equal Config.

    The file appears whole or not at all. Raises ConfigError where it cannot be written.
    """
    content = {}
    for name in KEYS:
        section, _, leaf = name.rpartition(".")
        holder = getattr(config, section) if section else config
        value = getattr(holder, leaf)
        target = content.setdefault(section, {}) if section else content
        target[leaf] = list(value) if isinstance(value, tuple) else value
    text = RESOLVED + yaml.safe_dump(content, sort_keys=False)
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path.absolute()}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


# ---------------------------------------------------------------- files


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice; PyYAML keeps the last one without a word."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{self.name}, line {line}: key '{key.value}' is written twice; keep one")
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _read_chain(path, seen=(), named_by=None):
    """Settings of a file laid over those of its bases: dict full name -> _Setting."""
    path = path.absolute()
    source = _shown_path(path)
    if path.resolve() in seen:
        raise ConfigError(f"{named_by}: base: {source} leads back to itself; remove one of the base: lines")
    content = _read_yaml(path, source, named_by)
    settings = {}
    if "base" in content:
        base = content.pop("base")
        if not isinstance(base, str):
            raise ConfigError(f"{source}: base={_show(base)}: expected the name of a file beside this one")
        settings = _read_chain(path.parent / os.path.expanduser(base), (*seen, path.resolve()), source)
    own = _flatten(content, source)
    if "val.target_acc" in own and ("data.val_dir" in own or "data.val_list" in own):
        settings.pop("val.target_images", None)
    settings.update(own)
    return settings


def _read_yaml(path, source, named_by):
    if not path.exists():
        by = f", which {named_by} names as base:" if named_by else ""
        raise ConfigError(f"configuration file not found: {path}{by}{_nearest_file(path)}")
    try:
        loader = _Loader(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give a .yaml file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source} is not a text file in UTF-8; give a .yaml file") from error
    loader.name = source
    try:
        content = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{source}, line {mark.line + 1}: not valid YAML: {error.problem}") from error
    except UserError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    finally:
        loader.dispose()
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected sections such as 'train:' with keys under them, found {_show(content)}")
    return content


def _flatten(content, source):
    settings = {}
    for name, value in content.items():
        if name not in SECTIONS:
            if name not in KEYS or "." in name:
                raise _unknown(str(name), _Setting(value, source))
            settings[name] = _Setting(value, source)
        elif value is not None:
            if not isinstance(value, dict):
                raise ConfigError(f"{name}={_show(value)} ({source}): {name} is a section; put its keys under it")
            for leaf, inner in value.items():
                full = f"{name}.{leaf}"
                if full not in KEYS:
                    raise _unknown(full, _Setting(inner, source))
                settings[full] = _Setting(inner, source)
    return settings


def _parse_override(text):
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals and text.endswith((".yaml", ".yml")):
        raise ConfigError(f"'{text}' ({COMMAND_LINE}): a configuration file is given as --config {text}")
    if not equals:
        raise ConfigError(f"'{text}' ({COMMAND_LINE}): expected section.key=value, for example train.lr=1e-3")
    setting = _Setting(value.strip(), COMMAND_LINE)
    if name in SECTIONS:
        raise ConfigError(f"'{text}' ({COMMAND_LINE}): {name} is a section; write {name}.key=value")
    if name not in KEYS:
        raise _unknown(name, setting)
    return {name: setting}


# ---------------------------------------------------------------- values


_EXPECTED = {
    str: "text (in quotes where YAML would read it as something else)",
    int: "a whole number",
    float: "a finite number such as 0.05 or 1e-3",
    bool: "true or false",
}


def _coerce(name, setting):
    """The value in the type that the schema declares, or ConfigError with key, value, source and expected type."""
    key = KEYS[name]
    kind, optional = key.type, False
    if get_origin(kind) is Union:
        kind, optional = get_args(kind)[0], True
    value = setting.value
    if optional and (value is None or (isinstance(value, str) and value.strip().lower() in ("", "null", "none", "~"))):
        return None
    if key.choices and isinstance(value, bool):
        # YAML 1.1 reads the bare words on and off as booleans.
        value = "on" if value else "off"
    try:
        return _to_tuple(value, get_args(kind)) if get_origin(kind) is tuple else _to_scalar(value, kind)
    except (ValueError, OverflowError):
        if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
            expected = "a list of words such as [blocks.0.*, cls_token]"
        elif get_origin(kind) is tuple:
            expected = f"a list of {len(get_args(kind))} finite numbers such as {_show(key.default)}"
        else:
            expected = _EXPECTED[kind]
        expected += " or null" if optional else ""
        raise ConfigError(f"{name}={_show(setting.value)} ({setting.source}): expected {expected}") from None


def _to_tuple(value, kinds):
    if kinds[-1] is Ellipsis:
        return _to_words(value)
    if isinstance(value, str):
        value = re.fullmatch(r"\[(.*)\]|([^\[\]]*)", value.strip())
        value = (value[1] or value[2] or "").split(",") if value else ()
    if not isinstance(value, (list, tuple)) or len(value) != len(kinds):
        raise ValueError(value)
    return tuple(_to_scalar(item, kind) for item, kind in zip(value, kinds))


def _to_words(value):
    """A tuple of any number of words, from a list or from words with commas between them, in brackets or not."""
    if isinstance(value, str):
        value = value.strip()
        value = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        value = [word.strip() for word in value.split(",")] if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) and word for word in value):
        raise ValueError(value)
    return tuple(value)


def _to_scalar(value, kind):
    """Convert to str, int, float or bool. Raises ValueError or OverflowError where that is no plain conversion."""
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, (bool, str)):
        word = str(value).strip().lower()
        if word in ("true", "false"):
            return word == "true"
    elif kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        if math.isfinite(float(value)):
            return float(value)
    elif kind is int and isinstance(value, (int, str)) and not isinstance(value, bool):
        return int(value)
    raise ValueError(value)


# ---------------------------------------------------------------- words


def _unknown(name, setting):
    """ConfigError for a key that the schema does not have, with the nearest one that it has."""
    section, _, leaf = name.rpartition(".")
    if name in KEYS:
        hint = f"write '{leaf}:' under '{section}:'"
    else:
        near = [full for full in KEYS if full.rpartition(".")[2] == leaf]
        if not near and section in SECTIONS:
            leaves = SECTIONS[section].__dataclass_fields__
            near = [f"{section}.{match}" for match in difflib.get_close_matches(leaf, leaves, n=1)]
            hint = f"keys of {section}: {', '.join(leaves)}"
        elif not near:
            near = difflib.get_close_matches(name, [*KEYS, *SECTIONS], n=1)
            hint = f"sections: {', '.join(SECTIONS)}; keys without a section: output, device"
        if near:
            hint = f"did you mean {' or '.join(near)}?"
    return ConfigError(f"unknown key '{name}' ({setting.source}); {hint}")


def _nearest_file(path):
    names = {file.stem: file.name for file in (ROOT / "config").glob("*.yaml")}
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f"; did you mean {ROOT / 'config' / names[near[0]]}?" if near else f"; see the files in {ROOT / 'config'}"


def _shown_path(path):
    return str(path.relative_to(ROOT)) if ROOT in path.parents else str(path)


def _show(value):
    if isinstance(value, tuple):
        value = list(value)
    text = value if isinstance(value, str) else "null" if value is None else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
