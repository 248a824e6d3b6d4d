"""Decoding speed of pruned models, compared with the whole model they come from.

    python benchmarks/pruned_decoding.py                 random weights of two sizes, this CPU
    python benchmarks/pruned_decoding.py --run RUN       a trained translator as well
    python benchmarks/pruned_decoding.py --run RUN --pruned RUN2   and what heed heads pruned
    python benchmarks/pruned_decoding.py --device cuda

Every second head of every layer is removed (half), or all but one in each layer. With random
weights no sentence ends before the limit, so both models take the same steps. Those of a run end
when they end: the table has tokens a second, and the median over rounds in which the models
alternate. On a CPU the seconds are those of its time that this process used, on one thread, so
that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import cast

import torch
from common import keep, side_by_side, table

from heed.bench.timing import PROCESSOR, WALL
from heed.config import ModelConfig
from heed.data import synthetic
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.decode.strategy import Hypothesis, Strategy
from heed.models import Translator, build
from heed.probe.patch import list_heads
from heed.probe.prune import prune_model
from heed.runs.load import load_run

SHAPES = {"2 layers, width 128, 4 heads": (2, 128, 4), "4 layers, width 512, 8 heads": (4, 512, 8)}
VOCAB, TEXTS, LENGTH = 2000, 16, 12
TRAINED_TEXTS = 128
STRATEGIES: dict[str, Strategy] = {"greedy": Greedy(), "beam 4": Beam(4)}
Sources = list[list[int]]


def random_task(layers: int, width: int, heads: int) -> tuple[Translator, Sources]:
    """A translator with random weights, and sources of one length."""
    torch.manual_seed(0)
    config = ModelConfig(layers=layers, width=width, heads=heads, tie_embeddings=False)
    model = build("translate", config, vocab=VOCAB)
    return cast(Translator, model).eval(), torch.randint(5, VOCAB, (TEXTS, LENGTH)).tolist()


def trained_task(run: Path) -> tuple[Translator, Sources]:
    """The translator of a run, and sentences of the generated world."""
    model, tokenizer, _ = load_run(run, device="cpu")
    texts = [s.english for s in synthetic.generate_sentences("test", TRAINED_TEXTS)]
    return cast(Translator, model), tokenizer.encode_batch(texts)


def prune(model: Translator, *, keep_every: int) -> Translator:
    """The model with one head out of `keep_every` left."""
    heads = [head for head in list_heads(model) if head.head % keep_every]
    return cast(Translator, prune_model(model, heads))


def translate(search: Search, sources: Sources) -> list[list[Hypothesis]]:
    """Decode as many tokens as a source has, and a few more."""
    return search.translate(sources, max_ratio=1.0, max_extra=4)


def count_tokens(search: Search, sources: Sources) -> int:
    """The tokens that a search generates, end tokens included."""
    best = [hypotheses[0] for hypotheses in translate(search, sources)]
    return sum(len(one.ids) + (not one.cut) for one in best)


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--pruned", type=Path, help="a pruned run of --run")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    clock = WALL
    if options.device == "cpu":
        clock = PROCESSOR
        torch.set_num_threads(1)
    tasks = {name: random_task(*shape) for name, shape in SHAPES.items()}
    if options.run is not None:
        tasks[f"trained run {options.run.name}"] = trained_task(options.run)
    rows: list[list[str]] = []
    figures: list[dict[str, object]] = []
    for task, (whole, sources) in tasks.items():
        versions = {"all heads": whole, "half": prune(whole, keep_every=2)}
        versions["one a layer"] = prune(whole, keep_every=whole.config.heads)
        if options.pruned is not None and task.startswith("trained"):
            versions = {"all heads": whole, "pruned run": trained_task(options.pruned)[0]}
        for kind, strategy in STRATEGIES.items():
            searches = {
                name: Search([model.to(options.device)], strategy)
                for name, model in versions.items()
            }
            tokens = {name: count_tokens(search, sources) for name, search in searches.items()}
            work = {name: partial(translate, search, sources) for name, search in searches.items()}
            seconds = side_by_side(work, device=options.device, rounds=options.rounds, clock=clock)
            speed = {name: tokens[name] / seconds[name] for name in versions}
            for name, model in versions.items():
                parameters = sum(p.numel() for p in model.parameters())
                ratio = speed[name] / speed["all heads"]
                row = [f"{task}, {kind}, {name}", f"{parameters:,}", f"{speed[name]:,.0f}"]
                rows.append([*row, f"{ratio:.2f}x"])
                figure = {"parameters": parameters, "tokens_per_second": speed[name]}
                figures.append({"task": task, "strategy": kind, "heads": name, **figure})
    text = table("Tokens a second", ["", "parameters", "tokens/s", "/ all heads"], rows)
    keep(f"pruned-decoding-{options.device}", text, figures, device=options.device)


if __name__ == "__main__":
    main()
