"""CTranslate2 as the decoding engine: heed's weights, decoded by CTranslate2's C++ code.

It takes the place of heed's own search, so everything around it stays the same: reading lines,
splitting long ones, alignments by the model itself. A model is converted once, into a cache folder
that is named by a hash of everything the conversion depends on. So a moved run is not converted
again, and a changed one is.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import ctranslate2
import torch

from heed import checksums
from heed.checksums import DamagedError
from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import batch_plan
from heed.decode.strategy import DecodingCancelledError, Hypothesis, IsCancelled
from heed.errors import ConfigError, HeedWarning
from heed.files import cache_root, delete_folder, publish, temporary_folder
from heed.models import Translator, ctranslate2_support
from heed.models import ctranslate2_layout as layout
from heed.nn.attention import has_head_edits

COMPUTE_TYPES = {"float32": "float32", "bf16": "bfloat16", "float16": "float16", "int8": "int8"}
"""heed's names of precisions, and CTranslate2's."""
PATIENCE = 2.0
"""A search stops when this many times the beam's width have finished. Heed's own search stops when
no running hypothesis can still win; this patience comes nearest to that."""
NO_PENALTY = 1e-9
"""A length penalty that is next to none. At 0 CTranslate2 stops at the first certain winner."""


def convert(
    model: Translator,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    max_source: int = 0,
    quantization: str | None = None,
) -> None:
    """Fill a folder with a model that CTranslate2 loads, and the tokenizer it needs.

    `max_source` is how many tokens a source may have.
    """
    tokenizer.save(folder / "tokenizer.json")
    specials = tokenizer.specials
    unknown = specials.pad if specials.unk is None else specials.unk
    special_ids = layout.SpecialIds(unknown, specials.bos, specials.eos, specials.suppressed_ids)
    names = token_names(model, tokenizer)
    layout.save(
        model, names, folder, special_ids=special_ids, least=max_source, quantization=quantization
    )


def token_names(model: Translator, tokenizer: Tokenizer) -> list[str]:
    """The unique name of every token that a model has, as the tokenizers library gives it."""
    tables = [model.embedding, model.source_embedding or model.embedding]
    rows = max(embedding.table.num_embeddings for embedding in tables)
    return [tokenizer.core.id_to_token(i) or f"<nameless {i}>" for i in range(rows)]


def check_supported(model: Translator) -> None:
    """Raise an error that lists the parts of a model that CTranslate2 does not support."""
    unsupported = ctranslate2_support.find_unsupported(model.config)
    if unsupported:
        raise ConfigError([*unsupported, "Use heed's own engine for this model."])


class CTranslate2Engine:
    """A model that CTranslate2 has loaded."""

    def __init__(
        self,
        model: Translator,
        tokenizer: Tokenizer,
        *,
        max_source: int = 0,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        """`max_source` is how many tokens a source may have."""
        self.model = model
        check_supported(model)
        device = _choose_device(device)
        compute_type = _compute_type(precision, device)
        self.core = ctranslate2.Translator(
            str(_cached_conversion(model, tokenizer, max_source)),
            device=device,
            compute_type=compute_type,
            intra_threads=torch.get_num_threads(),
        )
        self.names, self.eos = token_names(model, tokenizer), tokenizer.specials.eos
        self.ids = {name: i for i, name in enumerate(self.names)}
        self.max_positions = layout.positions(model, max_source)

    def search(self, settings: DecodeConfig, nbest: int = 1) -> CTranslate2Search:
        """A search with these settings."""
        return CTranslate2Search(self, settings, nbest)


class CTranslate2Search:
    """Greedy or beam search with CTranslate2, by the interface of `heed.decode.search.Search`."""

    def __init__(self, engine: CTranslate2Engine, settings: DecodeConfig, nbest: int = 1) -> None:
        unsupported = {
            "sample": "CTranslate2's samples depend on the batch",
            "coverage_penalty": "CTranslate2 reads the attention of one layer here, heed of all",
        }
        complaints = [
            f"decode.{key}: {why}." for key, why in unsupported.items() if getattr(settings, key)
        ]
        if complaints:
            raise ConfigError([*complaints, "Use heed's own engine for that."])
        self.engine, self.settings, self.nbest = engine, settings, nbest
        self.patience = 1.0 if settings.early_stop else PATIENCE

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_ratio: float = 2.0,
        max_extra: int = 10,
        numbers: Sequence[int] | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Hypothesis]]:
        """The hypotheses for each source (ids without an end token), the best first.

        `is_cancelled` is called before each batch.
        """
        if has_head_edits(self.engine.model):
            what = (
                "CTranslate2 decodes with its own copy of the model, whose attention has no edits"
            )
            raise ConfigError([f"{what}: use heed's own engine."])
        limits = batch_plan.length_limits(
            [*map(len, sources)],
            max_ratio=max_ratio,
            max_extra=max_extra,
            max_positions=self.engine.max_positions,
        )
        results: list[list[Hypothesis]] = [[] for _ in sources]
        repeat: dict[int, list[int]] = {}
        everything = range(len(sources))
        for i, hypotheses in self._decode(sources, everything, limits, self.patience, is_cancelled):
            results[i] = self._best(hypotheses)
            # At the limit CTranslate2 ranks cut hypotheses with finished ones, and keeps the best.
            mixed = self.settings.beam > 1 and any(h.cut for h in hypotheses)
            if mixed or max(map(_length, results[i])) > limits[i]:
                repeat.setdefault(limits[i], []).append(i)
        # A batch has one limit, so those sources are decoded again, with others of their limit.
        # Patience is raised by one: room for all finished hypotheses beside all cut ones.
        for indices in repeat.values():
            patience = self.patience + 1.0
            for i, hypotheses in self._decode(sources, indices, limits, patience, is_cancelled):
                results[i] = self._best(hypotheses)
        return results

    def _decode(
        self,
        sources: Sequence[Sequence[int]],
        indices: Sequence[int],
        limits: Sequence[int],
        patience: float,
        is_cancelled: IsCancelled | None,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The index of each of these sources and all its hypotheses; long sources come first."""
        lengths = [len(sources[i]) for i in indices]
        batch_size = self.settings.batch_size or batch_plan.INPUTS_ON_CPU
        for rows in batch_plan.plan_batches(lengths, batch_size):
            if is_cancelled is not None and is_cancelled():
                raise DecodingCancelledError
            batch = [indices[row] for row in rows]
            limit = max(limits[i] for i in batch)
            results = self._decode_batch([sources[i] for i in batch], limit, patience)
            yield from zip(batch, results, strict=True)

    def _decode_batch(
        self, sources: list[Sequence[int]], limit: int, patience: float
    ) -> Iterator[list[Hypothesis]]:
        settings, names = self.settings, self.engine.names
        results = self.engine.core.translate_batch(
            [[names[token] for token in source] for source in sources],
            beam_size=settings.beam,
            patience=patience,
            num_hypotheses=1 if settings.beam == 1 else round(settings.beam * patience),
            length_penalty=settings.length_penalty or NO_PENALTY,
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
        )
        for result in results:
            pairs = zip(result.hypotheses, result.scores, strict=True)
            yield [self._hypothesis(tokens, score) for tokens, score in pairs]

    def _hypothesis(self, tokens: list[str], score: float) -> Hypothesis:
        ids = [self.engine.ids[name] for name in tokens]
        logprob = score * len(ids) ** self.settings.length_penalty
        ended = ids[-1:] == [self.engine.eos]
        return Hypothesis(ids[:-1] if ended else ids, score, logprob, cut=not ended)

    def _best(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The best hypotheses; those that the limit cut come after those that the model ended."""
        return sorted(hypotheses, key=lambda h: h.cut)[: self.nbest]


def _length(hypothesis: Hypothesis) -> int:
    """The number of tokens, the end token included."""
    return len(hypothesis.ids) + (not hypothesis.cut)


def _cached_conversion(model: Translator, tokenizer: Tokenizer, max_source: int) -> Path:
    """The cache folder of this model's conversion, filled if it does not exist."""
    folder = cache_root() / "ctranslate2" / _cache_key(model, tokenizer, max_source)
    if folder.exists():
        try:
            checksums.verify_manifest(folder, todo="The model is converted again.")
        except (DamagedError, FileNotFoundError) as error:
            warnings.warn(f"the cached conversion is damaged: {error}", HeedWarning, stacklevel=2)
            delete_folder(folder)
    if not folder.exists():
        with temporary_folder(folder) as draft:
            try:
                convert(model, tokenizer, draft, max_source=max_source)
                checksums.write_manifest(draft)
                publish(draft, folder)
            except OSError:  # another process converted the same model at the same time
                if not folder.exists():
                    raise
    return folder


def _cache_key(model: Translator, tokenizer: Tokenizer, max_source: int) -> str:
    """A hash of what a conversion depends on: weights, names, tokenizer, and the code itself."""
    config = [model.config.model_dump_json(), tokenizer.fingerprint(), max_source]
    digest = blake2b(json.dumps(config).encode(), digest_size=16)
    digest.update(inspect.getsource(layout).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _choose_device(name: str) -> str:
    has_gpu = ctranslate2.get_cuda_device_count() > 0
    if name == "cuda" and not has_gpu:
        raise ConfigError(["device 'cuda': this CTranslate2 sees no GPU. Use cpu."])
    return name if name != "auto" else "cuda" if has_gpu else "cpu"


def _compute_type(precision: str, device: str) -> str:
    if precision not in COMPUTE_TYPES:
        choices = ", ".join(COMPUTE_TYPES)
        raise ConfigError([f"precision cannot be {precision!r}: use one of {choices}."])
    supported = ctranslate2.get_supported_compute_types(device)
    if COMPUTE_TYPES[precision] not in supported:
        choices = ", ".join(name for name, kind in COMPUTE_TYPES.items() if kind in supported)
        raise ConfigError(
            [f"precision {precision!r}: CTranslate2 has none on this {device}. Use {choices}."]
        )
    return COMPUTE_TYPES[precision]
