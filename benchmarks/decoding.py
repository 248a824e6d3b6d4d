"""Decoding speed compared with `generate` of `transformers`, on the same weights.

    python benchmarks/decoding.py                                      random weights, this CPU
    python benchmarks/decoding.py --device cuda --shapes set1 set3     two of the report's shapes
    python benchmarks/decoding.py --run RUN --source test.en           a trained model, real text

A model of Marian's shape (post-norm, sinusoidal, one embedding) is loaded into Marian's class. Both
then decode the same batches, sorted by length, with the same limit. With random weights no sentence
ends before the limit. A run must have norm_place = "post" and position = "sinusoidal" in `[model]`.
The table has sentences per second and the share of sentences with the same output.

The run of the saved results was trained by:

    heed train ted-en-fr/minute --data DIR --run RUN --set model.norm_place=post \\
        --set model.position=sinusoidal --set model.activation=relu --set train.epochs=10 \\
        --set train.lr=7e-4 --set train.evaluate_test=false

With `--engines`, CTranslate2 decodes too: as heed's engine, and by itself with its own settings,
which stop beam search sooner than `generate` and heed do.

    python benchmarks/decoding.py --run RUN --source test.en --reference test.fr \\
        --precisions float32 int8

compares heed with CTranslate2 by itself, text to text, greedy, on a CPU, in each precision. Both
use the run's tokenizer. CTranslate2 is measured with its threads on one batch and with a thread for
each batch, and in batches of 32 and of 256 sentences; heed as `heed translate` decodes. Each has a
process of its own, and all take turns, so that other work on the machine slows each of them alike.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import keep, synchronize, table
from sacrebleu import corpus_bleu
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from heed.api.translate import Translator as HeedTranslator
from heed.bench.system_worker import Worker, open_answers, send_answer, worker_process
from heed.bench.timing import CLOCKS, PROCESSOR, WALL
from heed.config import DecodeConfig, ModelConfig
from heed.data.tokenizers.special_tokens import BOS, EOS, PAD
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.models import Translator, build
from heed.runs.load import load_run

Sources = list[list[int]]
Run = Callable[[], Sources]
SHAPES = {  # layers, heads, width, as in the report
    "tiny": (1, 2, 32),
    "set1": (2, 8, 512),
    "set2": (4, 8, 512),
    "set3": (4, 12, 768),
    "set4": (6, 12, 768),
}


@dataclass(frozen=True)
class Task:
    """A model, its sources and limits."""

    name: str
    model: Translator
    sources: Sources
    tokens: int
    """The longest output."""
    batch_size: int
    tokenizer: Tokenizer | None = None


def random_task(shape: str, *, vocab: int, texts: int, tokens: int, device: str, size: int) -> Task:
    """Random weights and sources: every output has `tokens` tokens."""
    layers, heads, width = SHAPES[shape]
    torch.manual_seed(0)
    config = ModelConfig(
        layers=layers,
        heads=heads,
        width=width,
        position="sinusoidal",
        norm_place="post",
        activation="relu",
        dropout=0.0,
    )
    model = build("translate", config, vocab=vocab)
    if not isinstance(model, Translator):
        raise TypeError("the benchmark measures a translator")
    with torch.no_grad():  # the end token's logit is 0: far below the best, so that nothing ends
        model.embedding.table.weight[EOS] = 0.0
    sources = torch.randint(5, vocab, (texts, tokens - 1)).tolist()
    return Task(shape, model.to(device).eval(), sources, tokens, size)


def task_of(run: Path, source: Path, *, texts: int, tokens: int, device: str, size: int) -> Task:
    """A trained model and real text: all of it, or about `texts` of its lines."""

    model, tokenizer, recipe = load_run(run, device=device)
    if not isinstance(model, Translator):
        raise SystemExit(f"{run} is not a translator.")
    lines = [line for line in source.read_text(encoding="utf-8").split("\n") if line.strip()]
    lines = lines[:: max(1, len(lines) // texts)] if texts else lines
    sources = [ids[: recipe.data.max_length - 1] for ids in tokenizer.encode_batch(lines)]
    return Task(run.name, model, sources, tokens, size, tokenizer)


# ------------------------------------------------------------------------------ the same weights


def to_marian(model: Translator) -> Any:
    """The model as Marian's class, with the same logits."""
    config, vocab = model.config, model.embedding.table.num_embeddings
    marian: Any = MarianMTModel(
        MarianConfig(
            vocab_size=vocab,
            d_model=config.width,
            encoder_layers=config.layers,
            decoder_layers=config.decoder_layers or config.layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.feed_forward or 4 * config.width,
            decoder_ffn_dim=config.feed_forward or 4 * config.width,
            activation_function=config.activation,
            max_position_embeddings=1024,
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    )
    missing, unknown = marian.load_state_dict(_weights(model), strict=False)
    fixed = {"embed_positions.weight", "final_logits_bias"}
    if unknown or any(not name.endswith(tuple(fixed)) for name in missing):
        raise SystemExit(f"Marian's class cannot represent this model: {unknown or missing}")
    return marian.to(model.embedding.table.weight.device).eval()


def _weights(model: Translator) -> dict[str, Tensor]:
    """The weights under Marian's names.

    Marian has sines in the first half and cosines in the second, so dimensions are permuted. It
    multiplies tokens by √w, heed by w^¾: the embedding takes the difference, the last norm undoes
    it.
    """
    width, ours = model.config.width, model.state_dict()
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    scale = model.embedding.scale / math.sqrt(width)
    shared = ours["embedding.table.weight"][:, order] * scale
    names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    weights = {f"model.{name}.weight": shared for name in names} | {"lm_head.weight": shared}
    for side, layers in ("encoder", model.config.layers), ("decoder", model.config.decoder_layers):
        for i in range(layers or model.config.layers):
            block = {
                name.removeprefix(f"{side}.blocks.{i}."): weight
                for name, weight in ours.items()
                if name.startswith(f"{side}.blocks.{i}.")
            }
            for name, weight in _block(block, order).items():
                weights[f"model.{side}.layers.{i}.{name}"] = weight
    for part in ("weight", "bias"):
        weights[f"model.decoder.layers.{i}.final_layer_norm.{part}"] /= scale
    return {name: weight.clone() for name, weight in weights.items()}


def _block(ours: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """One block's weights by Marian's names."""
    weights: dict[str, Tensor] = {}
    for part in ("weight", "bias"):

        def reads(name: str, count: int = 1, part: str = part) -> tuple[Tensor, ...]:
            """A linear layer that reads the stream, in `count` parts; its columns are permuted."""
            whole = ours[f"{name}.{part}"]
            return tuple((whole[:, order] if part == "weight" else whole).chunk(count))

        def writes(name: str, part: str = part) -> Tensor:
            return ours[f"{name}.{part}"][order]

        into = zip("qkv", reads("attention.qkv", 3), strict=True)
        weights |= {f"self_attn.{name}_proj.{part}": weight for name, weight in into}
        weights[f"self_attn.out_proj.{part}"] = writes("attention.out")
        weights[f"self_attn_layer_norm.{part}"] = writes("attention_norm")
        if "cross.q.weight" in ours:
            into = zip("qkv", (*reads("cross.q"), *reads("cross.kv", 2)), strict=True)
            weights |= {f"encoder_attn.{name}_proj.{part}": weight for name, weight in into}
            weights[f"encoder_attn.out_proj.{part}"] = writes("cross.out")
            weights[f"encoder_attn_layer_norm.{part}"] = writes("cross_norm")
        (weights[f"fc1.{part}"],) = reads("feed_forward.up")
        weights[f"fc2.{part}"] = writes("feed_forward.down")
        weights[f"final_layer_norm.{part}"] = writes("feed_forward_norm")
    return weights


# ----------------------------------------------------------------------------------- what decodes


def by_heed(task: Task, beam: int) -> Run:
    """heed's search, reused across calls as a translator reuses it."""
    how = Beam(beam) if beam > 1 else Greedy()
    search = Search([task.model], how, batch_size=task.batch_size)

    return partial(_best_outputs, search, task)


def _best_outputs(search: Any, task: Task) -> Sources:
    results = search.translate(task.sources, max_ratio=1e-9, max_extra=task.tokens)
    return [hypotheses[0].ids for hypotheses in results]


def by_generate(task: Task, marian: Any, beam: int) -> Run:
    """transformers' generate on batches of the same sentences."""
    order = sorted(range(len(task.sources)), key=lambda i: -len(task.sources[i]))

    def run() -> Sources:
        out: Sources = [[] for _ in order]
        for first in range(0, len(order), task.batch_size):
            chosen = order[first : first + task.batch_size]
            for i, ids in zip(chosen, _generate(task, marian, beam, chosen), strict=True):
                out[i] = ids
        return out

    return run


def _generate(task: Task, marian: Any, beam: int, chosen: Sequence[int]) -> Sources:
    longest = max(len(task.sources[i]) for i in chosen) + 1
    rows = [[*task.sources[i], EOS] for i in chosen]
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows]).to(marian.device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.inference_mode():
        output: Tensor = marian.generate(
            ids,
            attention_mask=mask.to(marian.device),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=task.tokens,
            length_penalty=1.0,
            early_stopping=False,
        )
    return [_text(row) for row in output[:, 1:].tolist()]


def _text(row: list[int]) -> list[int]:
    return row[: row.index(EOS)] if EOS in row else [token for token in row if token != PAD]


def by_engine(task: Task, served: Any, beam: int) -> Run:
    """CTranslate2 as heed's engine."""
    search = served.search(DecodeConfig(beam=beam, batch_size=task.batch_size))

    return partial(_best_outputs, search, task)


def by_ctranslate2(task: Task, served: Any, beam: int) -> Run:
    """CTranslate2 by itself, with its own sorting and batching."""
    names, numbers = served.names, served.numbers
    texts = [[names[token] for token in source] for source in task.sources]

    def run() -> Sources:
        results = served.core.translate_batch(
            texts,
            beam_size=beam,
            max_batch_size=task.batch_size,
            max_input_length=0,
            max_decoding_length=task.tokens,
        )
        return [[numbers[name] for name in one.hypotheses[0]] for one in results]

    return run


def contenders(task: Task, marian: Any, served: Any, beam: int) -> dict[str, Run]:
    """Everything that decodes, by name; heed first."""
    runs = {"heed": by_heed(task, beam), "transformers": by_generate(task, marian, beam)}
    if served is not None:
        runs["heed with ctranslate2"] = by_engine(task, served, beam)
        runs["ctranslate2"] = by_ctranslate2(task, served, beam)
    return runs


def measure(
    task: Task, beam: int, rounds: int, device: str, *, engines: bool, clock: Callable[[], float]
) -> dict[str, Any]:
    """Sentences per second of each, and the share with the same output as `generate`."""
    marian, served = to_marian(task.model), None
    if engines and task.tokenizer is not None:
        from heed.decode.ctranslate2_engine import CTranslate2Engine

        longest = max(map(len, task.sources))
        served = CTranslate2Engine(task.model, task.tokenizer, max_source=longest, device=device)
    runs = contenders(task, marian, served, beam)
    # A GPU is warm after all batch sizes, a CPU after a few sentences.
    few = replace(task, sources=sorted(task.sources, key=len)[:16])
    for run in (runs if device == "cuda" else contenders(few, marian, served, beam)).values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    outputs: dict[str, Sources] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            synchronize(device)
            began = clock()
            outputs[name] = run()
            synchronize(device)
            taken[name].append(clock() - began)
    texts, reference = len(task.sources), outputs["transformers"]
    alike = {n: sum(a == b for a, b in zip(s, reference, strict=True)) for n, s in outputs.items()}
    return {
        "model": task.name,
        "beam": beam,
        "same": alike["heed"] / texts,
        "same_as_transformers": {name: count / texts for name, count in alike.items()},
        "sentences_per_second": {n: texts / statistics.median(t) for n, t in taken.items()},
    }


# ------------------------------------------------------------------------------- text to text

Texts = list[str]
LONGEST_TURN = 3600.0
"""Seconds after which a process that does not answer is ended; the first turn loads the model."""


def heed_texts(run: Path, precision: str) -> Callable[[Texts], Texts]:
    """heed as `heed translate` decodes."""
    translator = HeedTranslator.load(run, device="cpu", precision=precision)
    return lambda texts: translator.translate(texts, beam=1)


def ctranslate2_texts(
    run: Path, precision: str, *, threads: tuple[int, int], batch: int, tokens: int
) -> Callable[[Texts], Texts]:
    """CTranslate2 by itself, between the run's tokenizer; `threads` are batches, and in each."""
    import ctranslate2

    from heed.decode import ctranslate2_engine

    translator = HeedTranslator.load(run, device="cpu")
    model, tokenizer = translator.model, translator.tokenizer
    names = ctranslate2_engine.token_names(model, tokenizer)
    ids = {name: i for i, name in enumerate(names)}
    with TemporaryDirectory() as folder:
        ctranslate2_engine.convert(model, tokenizer, Path(folder), max_source=translator.max_length)
        core = ctranslate2.Translator(
            folder,
            device="cpu",
            compute_type=ctranslate2_engine.COMPUTE_TYPES[precision],
            inter_threads=threads[0],
            intra_threads=threads[1],
        )

    def run_texts(texts: Texts) -> Texts:
        sources = [[names[i] for i in source] for source in tokenizer.encode_batch(texts)]
        results = core.translate_batch(
            sources,
            beam_size=1,
            max_batch_size=batch,
            max_input_length=0,
            max_decoding_length=tokens,
        )
        outputs = [[ids[name] for name in one.hypotheses[0]] for one in results]
        return [" ".join(text.split()) for text in tokenizer.decode_batch(outputs)]

    return run_texts


def read_lines(path: Path) -> Texts:
    """The lines of a text file, with or without a newline at its end."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def answer_turns(options: argparse.Namespace) -> None:
    """The process of one system: translates the source at every line of standard input."""
    answers, (library, *numbers) = open_answers(), options.system.split("-")
    precision, texts = options.precisions[0], read_lines(options.source)
    if library == "heed":
        translate = heed_texts(options.run, precision)
    else:
        inter, intra, batch = map(int, numbers)
        translate = ctranslate2_texts(
            options.run,
            precision,
            threads=(inter, intra),
            batch=batch,
            tokens=options.tokens or 200,
        )
    clock = CLOCKS[PROCESSOR if options.cpu_time else WALL]
    for _ in sys.stdin:
        began = clock()
        outputs = translate(texts)
        send_answer(answers, "turn", seconds=clock() - began, outputs=outputs)


def take_turn(worker: Worker, name: str) -> dict[str, Any]:
    """Let a system translate the source once; its seconds and outputs."""
    answer = worker.ask("go", LONGEST_TURN)
    if answer["event"] == "failed":
        raise SystemExit(f"{name}: {answer['reason']}")
    return answer


def measure_precisions(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Sentences per second of heed and of CTranslate2, in turns, with BLEU of each output.

    In one process, OpenMP threads of CTranslate2 would go on spinning while it is heed's turn.
    """
    references, threads = read_lines(options.reference), torch.get_num_threads()
    names = {"heed": "heed"}
    for inter, intra in sorted({(1, threads), (threads, 1)}):
        for batch in (32, 256):
            name = f"ctranslate2, {inter} × {intra} threads, batch {batch}"
            names[f"ctranslate2-{inter}-{intra}-{batch}"] = name
    keys = [(precision, system) for precision in options.precisions for system in names]
    command = [sys.executable, *sys.argv]
    with ExitStack() as stack:
        workers = {
            (precision, system): stack.enter_context(
                worker_process([*command, "--system", system, "--precisions", precision])
            )
            for precision, system in keys
        }
        outputs: dict[tuple[str, str], Texts] = {
            key: take_turn(worker, ", ".join(key))["outputs"] for key, worker in workers.items()
        }
        taken: dict[tuple[str, str], list[float]] = {key: [] for key in keys}
        for _ in range(options.rounds):
            for key, worker in workers.items():
                taken[key].append(take_turn(worker, ", ".join(key))["seconds"])
    plain = outputs[options.precisions[0], "heed"]
    return [
        {
            "precision": precision,
            "name": names[system],
            "sentences_per_second": [len(plain) / seconds for seconds in taken[precision, system]],
            "heed_times_as_fast": [
                theirs / ours
                for ours, theirs in zip(
                    taken[precision, "heed"], taken[precision, system], strict=True
                )
            ],
            "bleu": corpus_bleu(output, [references]).score,
            "same_as_first": sum(a == b for a, b in zip(output, plain, strict=True)) / len(plain),
        }
        for (precision, system), output in outputs.items()
    ]


def precision_rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row each: median speed and its range, how many times as fast heed is, BLEU, agreement."""
    rows = []
    for one in results:
        speeds, times = one["sentences_per_second"], one["heed_times_as_fast"]
        rows.append(
            [
                f"{one['precision']}, {one['name']}",
                f"{statistics.median(speeds):.1f}",
                f"{min(speeds):.1f}–{max(speeds):.1f}",
                f"{statistics.median(times):.2f}x",
                f"{one['bleu']:.2f}",
                f"{one['same_as_first']:.1%}",
            ]
        )
    return rows


def rows_of(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row each: speed, speed relative to `generate`, share of the same output."""
    rows = []
    for one in results:
        speeds = one["sentences_per_second"]
        for name, speed in speeds.items():
            times, same = speed / speeds["transformers"], one["same_as_transformers"][name]
            label = f"{one['model']}, beam {one['beam']}, {name}"
            rows.append([label, f"{speed:.1f}", f"{times:.2f}x", f"{same:.1%}"])
    return rows


def main() -> None:
    """Measure, print the table and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["set2"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4, 5])
    parser.add_argument("--run", type=Path, help="a trained run instead of random weights")
    parser.add_argument("--source", type=Path, help="the text to translate")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--texts", type=int, default=0, help="0: all, or a default for the device")
    parser.add_argument("--tokens", type=int, default=0, help="longest output")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", action="store_true", help="also CTranslate2, with --run")
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=["float32", "bf16", "int8"],
        help="heed and CTranslate2 in these, text to text; needs --run, --source and --reference",
    )
    parser.add_argument("--system", help=argparse.SUPPRESS)  # the process of one system
    parser.add_argument("--reference", type=Path, help="the translations of --source")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads")
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time, on a busy machine"
    )
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    parser.add_argument("--name", default="", help="name of the results; default: decoding-DEVICE")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.precisions:
        if not (options.run and options.source and options.reference):
            parser.error("--precisions needs --run, --source and --reference.")
        if options.system:
            answer_turns(options)
            return
        compared = measure_precisions(options)
        title = "Sentences per second" + (" of processor time" if options.cpu_time else "")
        columns = ["", "median", "range", "heed is", "BLEU", "same output"]
        text = table(title, columns, precision_rows(compared))
        keep(options.name or "decoding-int8", text, compared, device="cpu", folder=options.out)
        return
    cuda = options.device == "cuda"
    size = options.batch_size or (256 if cuda else 64)
    if options.tiny:
        options.shapes, options.vocab, options.texts, options.tokens, options.rounds = (
            ["tiny"],
            60,
            6,
            8,
            1,
        )
    if options.run and options.source:
        like: dict[str, Any] = {"device": options.device, "size": size, "texts": options.texts}
        tasks = [task_of(options.run, options.source, tokens=options.tokens or 200, **like)]
    else:
        tasks = [
            random_task(
                shape,
                vocab=options.vocab,
                texts=options.texts or (256 if cuda else 64),
                tokens=options.tokens or 32,
                device=options.device,
                size=size,
            )
            for shape in options.shapes
        ]
    clock = CLOCKS[PROCESSOR if options.cpu_time else WALL]
    results = [
        measure(task, beam, options.rounds, options.device, engines=options.engines, clock=clock)
        for task in tasks
        for beam in options.beams
    ]
    title = "Sentences per second" + (" of processor time" if options.cpu_time else "")
    text = table(title, ["", "", "/ transformers", "same output"], rows_of(results))
    name = options.name or f"decoding-{options.device}"
    keep(name, text, results, device=options.device, folder=options.out)


if __name__ == "__main__":
    main()
