"""Fuzzed inputs of every command: recipes, data files, numbers, texts, folders to import.

Each family draws a command line and the files that it reads from a random generator, so a seed and
a number name an input for good.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heed.config import SECTIONS, Recipe
from heed.config.recipe import toml_value

TINY = (
    *("--set", "model.width=16", "--set", "model.heads=2", "--set", "model.layers=1"),
    *("--set", "model.max_positions=64", "--set", "data.max_length=64", "--set", "train.steps=2"),
    *("--set", "tokenizer.kind=char", "--set", "train.execution=eager"),
)
"""Settings with which a model trains in a second."""
NUMBERS = (
    *("-1", "0", "1", "2", "3.5", "1e-300", "1e308", "-0.0", "nan", "inf", "-inf", "0x10", "1_000"),
    *("100000", "2147483648", "4294967295", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", "1" + "0" * 30, "9" * 5000, "", " ", "true", "one", "½", "١٢", "1e5"),
)
VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, 7, 10**5, 2**31, 2**63, 2**64, 10**30, -(2**63), 0.0, -1.5, 0.5, 0.999),
    *(1e-300, 1e308, True, False, "", "x", "auto", "\u202e[red]\x1b[31m", "a" * 3000, [], [[]], {}),
    *(
        ["x"],
        {"x": 1},
        {"x": ["y"]},
        [1],
        [0.9, 0.99],
        [0.5] * 9,
        "../../etc/passwd",
        "[/]",
        "balanced",
    ),
)
WORDS = ("the", "a", "cat", "dog", "sees", "house", "old", "woman", "man", "green", "in", "it")
ODD_TEXTS = (
    *(
        "",
        " ",
        "\t",
        "\u200b",
        "\ufeff",
        "\x00",
        "\x1b]0;x\x07",
        "\ud7ff",
        "\U0010ffff",
        "a" * 5000,
    ),
    *(
        "<s>",
        "</s><pad>",
        "[CLS] [MASK]",
        "\u0301" * 100,
        "👩‍👩‍👧‍👦" * 20,
        "ﷺ" * 50,
        "\r",
        "\x85\u2028",
    ),
    *("%s%n", "{0}", "\\", '"', "'", "=1+1", "a,b;c\td", "١٢٣", "שלום עולם", "今日は", "-" * 300),
)
WHOLE = ("0", "1", "2", "3", "7", "64", "65", "999", "1000", "1001", "100000", "100001", "1000000")
REAL = (
    "0",
    "0.0",
    "1",
    "0.5",
    "0.999",
    "1e-30",
    "1e-9",
    "10",
    "100",
    "1000",
    "1e30",
    "1e31",
    "-0.0",
)
"""Numbers that an option may well take, at the edges of what it allows."""
NAMED = {
    "position": ("sinusoidal", "learned", "shaw", "t5", "alibi", "rope", "none"),
    "merge": ("concat", "shuffle", "shift", "reweight"),
    "optimizer": ("adamw", "adam", "sgd", "adagrad", "adafactor", "lion", "muon"),
    "schedule": ("constant", "inverse_sqrt", "cosine", "linear", "wsd"),
}
"""Keys whose values are names of parts."""
NESTED = "deeply nested"
"""Stands for JSON that is nested too deeply for Python to write."""
COMMANDS = ("translate", "classify", "generate")


@dataclass
class Input:
    """One command with what it reads; `files` are written into its folder first."""

    family: str
    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    folders: dict[str, Path] = field(default_factory=dict)
    """Folders that are copied into the input's folder before the files are written."""

    def write(self, folder: Path) -> None:
        """Write all files and folders."""
        for name, source in self.folders.items():
            shutil.copytree(source, folder / name)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@dataclass(frozen=True)
class Models:
    """Trained runs of every task, and folders of transformers, that inputs use."""

    runs: dict[str, Path]
    folders: list[Path]


def draw_input(seed: int, number: int, models: Models) -> Input:
    """Input `number` of a seed."""
    draw = random.Random(f"{seed} {number}")
    families: dict[Callable[[random.Random, Models], Input], int] = {
        recipe_with_value: 2,
        mutated_recipe: 3,
        checked_data: 5,
        trained_data: 1,
        numbers: 6,
        texts: 5,
        scored_files: 2,
        imported_folder: 6,
        named_paths: 1,
    }
    [family] = draw.choices([*families], [*families.values()])
    return family(draw, models)


# ------------------------------------------------------------------------------------- recipes


def recipe_with_value(draw: random.Random, models: Models) -> Input:
    """A recipe in which one or two keys have an extreme or wrong value."""
    task = draw.choice(COMMANDS)
    tables: dict[str, Any] = _recipe(task)
    for _ in range(draw.choice((1, 1, 2))):
        section = draw.choice([*SECTIONS])
        key = draw.choice(SECTIONS[section].keys())
        value = draw.choice(VALUES) if draw.random() < 0.2 else _edge_value(draw, section, key)
        tables.setdefault(section, {})[key] = value
    text = _toml(tables).encode("utf-8", "replace")
    command = ["train", "r.toml", "--device", "cpu", "--run", "run"]
    return Input("recipe value", command, {"r.toml": text} | data_files(task))


def _edge_value(draw: random.Random, section: str, key: str) -> Any:
    """A value of the right type at or near the edges of what the schema allows."""
    schema = SECTIONS[section].model_json_schema()["properties"][key]
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    option = draw.choice(options)
    if "enum" in option:
        return draw.choice(option["enum"])
    low = option.get("minimum", option.get("exclusiveMinimum", 0))
    high = option.get("maximum", option.get("exclusiveMaximum", 1))
    if option.get("type") == "integer":
        return draw.choice((low, low + 1, low + 2, 3, 5, 8, 100, 1000, high, high - 1, high + 1))
    if option.get("type") == "number":
        return draw.choice((low, high, 0.5, 1e-9, 0.999999, 1.0, 3.0, 1e-30, 1e30, high * 2.0))
    if option.get("type") == "boolean":
        return draw.random() < 0.5
    if key in NAMED:
        return draw.choice(NAMED[key])
    return draw.choice(VALUES)


def mutated_recipe(draw: random.Random, models: Models) -> Input:
    """The text of a recipe with bytes or lines changed, cut or repeated."""
    task = draw.choice(COMMANDS)
    text = Recipe.of(_recipe(task)).toml().encode()
    lines = text.split(b"\n")
    for _ in range(draw.choice((0, 1, 1, 3))):
        place = draw.randrange(len(lines))
        odd = draw.choice(NUMBERS).encode()
        lines[place] = draw.choice((b"", lines[place] + odd, draw.choice(lines), b"x = " + odd))
    text = b"\n".join(lines)
    text = _mutate(draw, text) if draw.random() < 0.3 else text
    command = draw.choice((["recipes", "r.toml"], ["train", "r.toml", "--dry-run"]))
    if draw.random() < 0.3:
        keys = ("seed", "x", "train.", ".", "model.width", "data", "data.train", "task", "train.lr")
        override = f"{draw.choice(keys)}={draw.choice((*NUMBERS, '[]', '{}', '[1]', 'x'))}"
        command = ["train", "r.toml", "--dry-run", "--set", override]
    if command[0] == "train" and draw.random() < 0.2:
        command += ["--data", draw.choice((".", "none", "r.toml"))]
    return Input("recipe text", command, {"r.toml": text} | data_files(task))


def _recipe(task: str) -> dict[str, Any]:
    names = ["a.en", "a.fr"] if task == "translate" else ["a.tsv" if task == "classify" else "a.en"]
    return {
        "task": task,
        "data": {"train": names, "dev": names, "max_length": 32},
        "tokenizer": {"kind": "char"},
        "model": {"layers": 1, "width": 16, "heads": 2, "max_positions": 64},
        "train": {"steps": 2, "batch_size": 8, "execution": "eager"},
    }


def _toml(tables: dict[str, Any]) -> str:
    lines = [f"{key} = {toml_value(v)}" for key, v in tables.items() if not isinstance(v, dict)]
    for name, values in tables.items():
        if isinstance(values, dict):
            lines += [f"[{name}]", *(f"{key} = {toml_value(v)}" for key, v in values.items())]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------- data files


def data_files(task: str, rows: int = 40) -> dict[str, bytes]:
    """Small training files of a task, by name."""
    lines = [" ".join(WORDS[(i * j + i) % len(WORDS)] for j in range(1, 6)) for i in range(rows)]
    if task == "classify":
        return {"a.tsv": "".join(f"{x}\t{'ab'[i % 2]}\n" for i, x in enumerate(lines)).encode()}
    text = "".join(f"{line}\n" for line in lines).encode()
    return {"a.en": text, "a.fr": text.upper()} if task == "translate" else {"a.en": text}


def checked_data(draw: random.Random, models: Models) -> Input:
    """`heed check` of a damaged file of any format."""
    name, content = _data_file(draw)
    command = ["check", name] + ["--json"] * draw.choice((0, 1))
    files = {name: content}
    if draw.random() < 0.3:
        other, files[other] = (pair := ("b.fr", _mutate(draw, data_files("translate")["a.fr"])))
        command.insert(2, pair[0])
    if draw.random() < 0.3:
        command += ["--task", draw.choice((*COMMANDS, "none"))]
    if draw.random() < 0.1:
        command = [*command[:2], "--batch"]
    return Input("check data", command, files)


def trained_data(draw: random.Random, models: Models) -> Input:
    """Training on a damaged file."""
    name, content = _data_file(draw)
    command = ["train", "--train", name, "--device", "cpu", "--run", "run", *TINY]
    if draw.random() < 0.7:
        command += ["--task", draw.choice(COMMANDS)]
    return Input("train on data", command, {name: content})


def _data_file(draw: random.Random) -> tuple[str, bytes]:
    kind = draw.choice(("tsv", "csv", "jsonl", "txt"))
    rows = [
        [" ".join(draw.choices(WORDS, k=draw.randint(0, 8))), draw.choice("ab")]
        for _ in range(draw.randint(0, 60))
    ]
    for _ in range(draw.choice((0, 0, 1, 3))):
        if rows:
            draw.choice(rows)[draw.choice((0, 1))] = draw.choice(ODD_TEXTS)
    if kind == "jsonl":
        text = "".join(json.dumps({"text": x, "label": y}) + "\n" for x, y in rows)
    else:
        separator = {"tsv": "\t", "csv": draw.choice(",;"), "txt": " "}[kind]
        text = "".join(separator.join(row) + draw.choice(("\n", "\n", "\r\n")) for row in rows)
    encoding = draw.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1", "utf-32", "cp037"))
    content = text.encode(encoding, "replace")
    content = _mutate(draw, content) if draw.random() < 0.7 else content
    if draw.random() < 0.05:
        content += b"x" * (1 << 25)  # longer than a line may be
    if draw.random() < 0.2:
        packed = gzip.compress(content, 1)
        return f"a.{kind}.gz", _mutate(draw, packed) if draw.random() < 0.6 else packed
    return f"a.{kind}", content


def _mutate(draw: random.Random, content: bytes) -> bytes:
    """Bytes changed, inserted, deleted, repeated or cut."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        place = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and place < len(data):
            data[place] = draw.randrange(256)
        elif kind == 1:
            data[place:place] = draw.randbytes(draw.choice((1, 4, 100)))
        elif kind == 2:
            del data[place : place + draw.choice((1, 10, 1000))]
        elif kind == 3:
            data[place:place] = data[place : place + 50] * draw.choice((2, 40))
        elif kind == 4:
            odd = (
                '"',
                "\0",
                "\n",
                "\t",
                "[" * 2000,
                "{" * 2000,
                "9" * 400,
                "\ufeff",
                "\\ud800",
                "",
            )
            data[place:place] = draw.choice(odd).encode()
        elif draw.random() < 0.2:
            del data[place:]
    return bytes(data)


# ------------------------------------------------------------------- numbers of the command line

OPTIONS = {
    "translate": (
        *(
            "--beam",
            "--nbest",
            "--length-penalty",
            "--coverage-penalty",
            "--temperature",
            "--top-k",
        ),
        *("--top-p", "--min-p", "--seed", "--max-ratio", "--max-extra", "--batch-size"),
    ),
    "generate": (
        *("--length", "--samples", "--temperature", "--top-k", "--top-p", "--min-p", "--seed"),
        "--batch-size",
    ),
    "evaluate": ("--bootstrap", "--stride", "--beam"),
    "score": ("--bootstrap", "--seed"),
    "train": ("--threads",),
    "bench": ("--threads", "--updates"),
    "demo": ("--steps", "--seed"),
}
"""Options with a number, by command."""
FRACTIONS = (
    *("--length-penalty", "--coverage-penalty", "--temperature", "--top-p", "--min-p"),
    "--max-ratio",
)
"""Options whose number may have a fraction."""


def numbers(draw: random.Random, models: Models) -> Input:
    """A command with extreme numbers for one or two of its options."""
    command = draw.choices([*OPTIONS], [4, 3, 2, 1, 1, 1, 1])[0]
    flags = []
    for option in draw.sample(OPTIONS[command], min(draw.choice((1, 2)), len(OPTIONS[command]))):
        usual: tuple[str, ...] = REAL if option in FRACTIONS else WHOLE
        if command == "demo":  # one that runs takes minutes
            usual = ("-1", "nan", "1" + "0" * 30)
        unusual = draw.random() < 0.3 and command != "demo"
        flags += [option, draw.choice(NUMBERS if unusual else usual)]
    files = data_files("translate")
    if command in ("translate", "generate"):
        arguments = [command, str(models.runs[command]), "the cat", *flags, "--device", "cpu"]
    elif command == "evaluate":
        run = models.runs[draw.choice(COMMANDS)]
        arguments = [command, str(run), *flags, "--device", "cpu"]
    elif command == "score":
        arguments = [command, "a.en", "--ref", "a.fr", *flags, "--metric", "bleu"]
    elif command == "demo":
        arguments = [command, "--run", "run", *flags]
        if "--steps" not in flags:
            arguments += ["--steps", "0"]
    else:
        data = ["--task", "translate", "--train", "a.en", "--train", "a.fr", *TINY]
        arguments = [command, *data, *flags, "--device", "cpu"]
    return Input("numbers", arguments, files)


# --------------------------------------------------------------------------------------- texts


def texts(draw: random.Random, models: Models) -> Input:
    """Odd texts to translate, classify or continue: as arguments, as a file, or from a pipe."""
    command = draw.choice(COMMANDS)
    lines = [draw.choice((*ODD_TEXTS, "the cat sees the dog")) for _ in range(draw.randint(0, 6))]
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    content = _mutate(draw, content) if draw.random() < 0.5 else content
    arguments = [command, str(models.runs[command]), "--device", "cpu"]
    arguments += ["--length", "5"] if command == "generate" else []
    arguments += draw.choice(([], ["--json"], ["--json"]))
    if command == "translate":
        arguments += draw.choice(
            ([], ["--alignments"], ["--scores"], ["--copy-unknown"], ["--sample"])
        )
    if command == "generate":
        arguments += draw.choice(([], ["--cut-prompt"], ["--stop", "e"], ["--stop", ""]))
    if draw.random() < 0.4:
        name = draw.choice(("x.txt", "x.gz", "x.tsv", "x.csv", "x.jsonl", "x.zst"))
        return Input("texts", [*arguments, "--file", name], {name: content})
    if draw.random() < 0.4:
        plain = [line.replace("\0", "") for line in lines]
        return Input("texts", [*arguments, "--", *plain], stdin=content)
    return Input("texts", arguments, stdin=content)


def scored_files(draw: random.Random, models: Models) -> Input:
    """`heed score` and `heed evaluate --test` of damaged files."""
    files = data_files("translate")
    spoiled = draw.choice(("a.en", "a.fr"))
    files[spoiled] = _mutate(draw, files[spoiled])
    if draw.random() < 0.5:
        command = ["score", "a.en", "--ref", "a.fr", "--bootstrap", "100", "--metric", "bleu,chrf"]
        return Input("score", command, files)
    task = draw.choice(COMMANDS)
    name, content = _data_file(draw)
    command = ["evaluate", str(models.runs[task]), "--test", name, "--device", "cpu"]
    return Input("evaluate", [*command, "--bootstrap", "100"], {name: content})


# -------------------------------------------------------------------------- folders to import


def imported_folder(draw: random.Random, models: Models) -> Input:
    """`heed import` of a folder with a changed config.json, tokenizer.json or safetensors file."""
    source = draw.choice(models.folders)
    files: dict[str, bytes] = {}
    names = sorted(path.name for path in source.iterdir())
    for name in draw.sample(names, draw.choice((1, 1, 2))):
        content = (source / name).read_bytes()
        if name.endswith(".safetensors"):
            content = _mutate_safetensors(draw, content)
        elif draw.random() < 0.75:
            value = json.loads(content)
            for _ in range(draw.choice((1, 1, 3))):
                value = _mutate_json(draw, value)
            text = json.dumps(value)
            content = text.replace(json.dumps(NESTED), "[" * 3000 + "]" * 3000).encode()
        else:
            content = _mutate(draw, content)
        files[f"model/{name}"] = content
    return Input("import", ["import", "model", "--run", "run"], files, folders={"model": source})


def _mutate_json(draw: random.Random, value: Any) -> Any:
    """A value with something inside replaced, removed or nested."""
    if isinstance(value, dict) and value and draw.random() < 0.95:
        key = draw.choice([*value])
        rest = dict(value)
        if draw.random() < 0.1:
            del rest[key]
        else:
            rest[key] = _mutate_json(draw, value[key])
        return rest
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], _mutate_json(draw, value[place]), *value[place + 1 :]]
    if draw.random() < 0.03:
        return NESTED
    odd = (
        *VALUES,
        None,
        10**9,
        2**32 - 1,
        {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 99},
    )
    return draw.choice(odd)


def _mutate_safetensors(draw: random.Random, content: bytes) -> bytes:
    """A safetensors file with a changed header, or with changed bytes."""
    if draw.random() < 0.3:
        return _mutate(draw, content[:4000]) + content[4000:]
    [size] = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    name = draw.choice([*header])
    header[name] = _mutate_json(draw, header[name])
    text = json.dumps(header).replace(json.dumps(NESTED), "[" * 3000 + "]" * 3000).encode()
    length = draw.choice((len(text),) * 8 + (0, 2**40, 2**63))
    return struct.pack("<Q", length) + text + content[8 + size :]


# --------------------------------------------------------------------------------- odd names


def named_paths(draw: random.Random, models: Models) -> Input:
    """Files and folders whose names have brackets, control characters or bytes beyond UTF-8."""
    odd = draw.choice(
        ("[red]x", "a\x1b[31m", "a\x7f", "a\nb", "-x", "a b", "\udcff\udc80", ":smile:", "[/]")
    )
    command = draw.choice(("train", "check", "runs", "evaluate", "classify", "score", "recipes"))
    files = {f"{odd}.tsv": data_files("classify")["a.tsv"]}
    name = f"./{odd}.tsv"
    arguments = {
        "train": ["train", "--train", name, "--run", f"./{odd}-run", *TINY, "--device", "cpu"],
        "check": ["check", name],
        "runs": ["runs", f"./{odd}-runs"],
        "evaluate": ["evaluate", str(models.runs["classify"]), "--test", name, "--bootstrap", "0"],
        "classify": ["classify", str(models.runs["classify"]), "--file", name],
        "score": ["score", name, "--ref", name, "--bootstrap", "0"],
        "recipes": ["recipes", name],
    }[command]
    folders = {f"{odd}-runs": models.runs["classify"]} if command == "runs" else {}
    return Input("names", arguments, files, folders=folders)
