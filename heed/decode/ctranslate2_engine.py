"""CTranslate2 as the engine: the weights that heed trained, written with by its C++.

It stands where heed's own search stands, so that all around it is the same: lines, parts of long
ones, alignments by the model itself. A model is converted once, into a folder of the cache that is
named by a hash of all that the conversion hangs on. Moving a run changes nothing then, and what was
changed is another folder.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import ctranslate2
import torch

from heed.config import DecodeConfig
from heed.data.token_store import cache_root
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import batch_plan as allowed
from heed.decode.strategy import Hypothesis
from heed.errors import ConfigError
from heed.files import temporary_folder
from heed.models import Translator
from heed.models import ctranslate2_layout as layout

COMPUTE = {"float32": "float32", "bf16": "bfloat16", "float16": "float16", "int8": "int8"}
"""heed's words for precision, and CTranslate2's."""
PATIENCE = 2.0
"""A search goes on until this many times the beam's width have ended. Heed's own asks whether those
that go on could still win; that is what comes nearest to it."""
BARELY = 1e-9
"""A length penalty that is none. At 0 CTranslate2 stops at the first text that it knows to win."""


def convert(
    model: Translator,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    least: int = 0,
    quantization: str | None = None,
) -> None:
    """Fill a folder with a model that CTranslate2 loads, and the tokenizer it needs."""
    tokenizer.save(folder / "tokenizer.json")
    own = tokenizer.specials
    unknown = own.pad if own.unk is None else own.unk
    special_ids = layout.SpecialIds(unknown, own.bos, own.eos, own.unwritten)
    names = names_of(model, tokenizer)
    layout.save(
        model, names, folder, special_ids=special_ids, least=least, quantization=quantization
    )


def names_of(model: Translator, tokenizer: Tokenizer) -> list[str]:
    """What the tokenizer's own library calls each token that a model knows: no two are alike."""
    tables = [model.embedding, model.source_embedding or model.embedding]
    rows = max(embedding.table.num_embeddings for embedding in tables)
    return [tokenizer.core.id_to_token(i) or f"<nameless {i}>" for i in range(rows)]


def refuse(model: Translator) -> None:
    """Say what of a model CTranslate2 cannot hold."""
    found = layout.find_unsupported(model.config)
    if found:
        raise ConfigError([*found, "Use heed's own engine for this model."])


class Served:
    """A model in CTranslate2's hands."""

    def __init__(
        self,
        model: Translator,
        tokenizer: Tokenizer,
        *,
        least: int = 0,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        """`least` is how many tokens a source may have."""
        refuse(model)
        device = _device(device)
        compute_type = _compute_type(precision, device)
        self.core = ctranslate2.Translator(
            str(_converted(model, tokenizer, least)),
            device=device,
            compute_type=compute_type,
            intra_threads=torch.get_num_threads(),
        )
        self.names, self.end = names_of(model, tokenizer), tokenizer.specials.eos
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.positions = layout.positions(model, least)

    def search(self, settings: DecodeConfig, nbest: int = 1) -> ServedSearch:
        """What writes with it by these settings."""
        return ServedSearch(self, settings, nbest)


class ServedSearch:
    """Greedy or beam search, as `heed.decode.search.Search` has them."""

    def __init__(self, served: Served, settings: DecodeConfig, nbest: int = 1) -> None:
        refused = {
            "sample": "CTranslate2 has no draws that are the same in whatever batch",
            "coverage_penalty": "CTranslate2 looks at one layer's attention there, heed at all",
        }
        found = [f"decode.{key}: {why}." for key, why in refused.items() if getattr(settings, key)]
        if found:
            raise ConfigError([*found, "Use heed's own engine for that."])
        self.served, self.settings, self.nbest = served, settings, nbest
        self.patience = 1.0 if settings.early_stop else PATIENCE

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        max_ratio: float = 2.0,
        max_extra: int = 10,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """The hypotheses for each source (ids without an end mark), the best first."""
        ends = self.served.positions
        limits = allowed.limits(
            [*map(len, sources)], max_ratio=max_ratio, max_extra=max_extra, most=ends
        )
        out: list[list[Hypothesis]] = [[] for _ in sources]
        unsure: dict[int, list[int]] = {}
        for chosen, found in self._all(sources, range(len(sources)), limits, self.patience):
            out[chosen] = self._best(found)
            # At a limit CTranslate2 takes what it cut for ended, and keeps the best of both.
            crowded = self.settings.beam > 1 and any(one.cut for one in found)
            if crowded or max(map(_length, out[chosen])) > limits[chosen]:
                unsure.setdefault(limits[chosen], []).append(chosen)
        # A batch has one limit, so those texts write again, with those of their own limit alone. A
        # beam more is room for all that ended beside all that was cut.
        for alike in unsure.values():
            for chosen, found in self._all(sources, alike, limits, self.patience + 1.0):
                out[chosen] = self._best(found)
        return out

    def _all(
        self,
        sources: Sequence[Sequence[int]],
        numbers: Sequence[int],
        limits: Sequence[int],
        patience: float,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Each of these sources by its number, and all hypotheses for it; long ones first."""
        lengths = [len(sources[i]) for i in numbers]
        for places in allowed.batches(lengths, self.settings.batch_size or allowed.TEXTS):
            chosen = [numbers[place] for place in places]
            limit = max(limits[i] for i in chosen)
            found = self._batch([sources[i] for i in chosen], limit, patience)
            yield from zip(chosen, found, strict=True)

    def _batch(
        self, sources: list[Sequence[int]], limit: int, patience: float
    ) -> Iterator[list[Hypothesis]]:
        settings, names = self.settings, self.served.names
        results = self.served.core.translate_batch(
            [[names[token] for token in source] for source in sources],
            beam_size=settings.beam,
            patience=patience,
            num_hypotheses=1 if settings.beam == 1 else round(settings.beam * patience),
            length_penalty=settings.length_penalty or BARELY,
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=0,
            return_scores=True,
            return_end_token=True,
        )
        for one in results:
            yield [self._written(*each) for each in zip(one.hypotheses, one.scores, strict=True)]

    def _written(self, tokens: list[str], score: float) -> Hypothesis:
        ids = [self.served.numbers[name] for name in tokens]
        logprob = score * len(ids) ** self.settings.length_penalty
        ended = ids[-1:] == [self.served.end]
        return Hypothesis(ids[:-1] if ended else ids, score, logprob, cut=not ended)

    def _best(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """The best hypotheses; what the limit cut stands behind what the model ended itself."""
        return sorted(found, key=lambda one: one.cut)[: self.nbest]


def _length(one: Hypothesis) -> int:
    """Tokens, the end mark too."""
    return len(one.ids) + (not one.cut)


def _converted(model: Translator, tokenizer: Tokenizer, least: int) -> Path:
    """The folder of this model in the cache, filled now if it is not there."""
    folder = cache_root() / "ctranslate2" / _key(model, tokenizer, least)
    if not folder.exists():
        with temporary_folder(folder) as draft:
            try:
                convert(model, tokenizer, draft, least=least)
                draft.rename(folder)
            except OSError:  # another process was faster; what it made is the same
                if not folder.exists():
                    raise
    return folder


def _key(model: Translator, tokenizer: Tokenizer, least: int) -> str:
    """What a conversion hangs on: the weights, what they are called, and how it is done."""
    facts = [model.config.model_dump_json(), tokenizer.fingerprint(), least]
    digest = blake2b(json.dumps(facts).encode(), digest_size=16)
    digest.update(inspect.getsource(layout).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _device(name: str) -> str:
    able = ctranslate2.get_cuda_device_count() > 0
    if name == "cuda" and not able:
        raise ConfigError(["device 'cuda': this CTranslate2 sees no GPU. Use cpu."])
    return name if name != "auto" else "cuda" if able else "cpu"


def _compute_type(precision: str, device: str) -> str:
    if precision not in COMPUTE:
        raise ConfigError([f"precision cannot be {precision!r}: use one of {', '.join(COMPUTE)}."])
    able = ctranslate2.get_supported_compute_types(device)
    if COMPUTE[precision] not in able:
        has = ", ".join(word for word, theirs in COMPUTE.items() if theirs in able)
        what = f"precision {precision!r}: CTranslate2 has none on this {device}. Use {has}."
        raise ConfigError([what])
    return COMPUTE[precision]
