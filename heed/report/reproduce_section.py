"""Time, hardware and how to reproduce a run: commands, versions, hashes, the whole recipe."""

from __future__ import annotations

import shlex
from statistics import median
from typing import Any

from heed.report.document import Block, Code, Heading, Paragraph, Section, Table
from heed.report.run_content import RunContent


def build_timing_section(content: RunContent) -> Section:
    """The section about time and hardware."""
    rows = timing_rows(content)
    caption = "Time and hardware. Tokens are without padding; speed is without evaluations."
    table = Table("time", caption, ["property", "value"], rows, right=["value"])
    return Section("timing", "Time and hardware", [table])


def timing_rows(content: RunContent) -> list[list[str]]:
    """Labels and values of what is known about time and hardware."""
    environment, last = content.environment, content.last
    rows: list[tuple[str, str | None]] = [
        ("steps", _count(last.get("step"))),
        ("epochs", f"{last['epoch']:.2f}" if last.get("epoch") is not None else None),
        ("tokens", _count(last.get("tokens"))),
        ("minutes", training_minutes(content)),
        ("tokens per second, median", _count(_median_speed(content))),
        ("device", environment.get("device")),
        ("GPU", environment.get("gpu")),
        ("processes", _count(environment.get("ranks"))),
        ("CPU threads", _count(environment.get("cpu_threads"))),
        ("precision", _precision(content)),
        ("parameters", _count(content.parameters)),
    ]
    return [[label, value or "not recorded"] for label, value in rows if value or label != "GPU"]


def training_minutes(content: RunContent) -> str | None:
    """Minutes of training and its evaluations, without pauses before a resume."""
    seconds = [row["seconds"] for row in content.history if row.get("seconds") is not None]
    return f"{seconds[-1] / 60:.1f}" if seconds else None


def _median_speed(content: RunContent) -> float | None:
    key = "time/tokens_per_second"
    speeds = [row[key] for row in content.history if row["event"] == "train" and key in row]
    return median(speeds) if speeds else None


def _precision(content: RunContent) -> str | None:
    if "bf16" not in content.environment:
        return None
    return "bfloat16" if content.environment["bf16"] else "float32"


def _count(value: Any) -> str | None:
    return None if value is None else f"{value:,.0f}"


def build_reproduce_section(content: RunContent) -> Section:
    """The section that says how to make the same run again."""
    environment = content.environment
    blocks: list[Block] = []
    if not environment:
        blocks.append(Paragraph("The run has recorded no environment: it never started.", "note"))
    else:
        packages = environment.get("packages", {})
        named = [[name, str(version or "from a checkout")] for name, version in packages.items()]
        rows = [
            ["Python", str(environment.get("python", "not recorded"))],
            ["platform", str(environment.get("platform", "not recorded"))],
            *named,
            ["heed's commit", str(environment.get("commit") or "not recorded (installed)")],
            ["seed", str(content.recipe.seed)],
            *([f"hash of {split}", text] for split, text in environment.get("data", {}).items()),
        ]
        blocks.append(Table("versions", "Versions, seed and data.", ["part", "value"], rows))
    folder = content.run.folder
    commands = [f"heed train recipe.toml --run {shlex.quote(content.name)}"]
    commands += [_evaluate_command(content, name) for name in content.results]
    commands.append(f"heed report {shlex.quote(content.name)}")
    blocks += [
        Heading("Commands"),
        Paragraph(f"Save the recipe below as recipe.toml, or use {folder / 'recipe.toml'}."),
        Code("\n".join(commands)),
        Heading("Recipe"),
        Code(content.recipe.toml().rstrip("\n")),
    ]
    return Section("reproduce", "How to reproduce", blocks)


def _evaluate_command(content: RunContent, set_name: str) -> str:
    """The command that evaluates the run on a set of its recipe, or on files."""
    command = ["heed", "evaluate", content.name]
    if set_name in ("dev", "train", *content.recipe.data.sets):
        command += ["--split", set_name]
    elif set_name != "test":
        command += [
            part for file in content.results[set_name]["files"] for part in ("--test", file)
        ]
    return shlex.join(command)
