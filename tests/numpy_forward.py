"""A forward pass in numpy, from a checkpoint's tensors and the papers' formulas, for one text.

It shares no code with heed: it reads `state_dict` by name and a config's numbers. It has no batch,
no padding, no mask but the causal one, and every loop is over heads. Shapes: h heads, n queries,
m keys, d head width, w model width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = Mapping[str, Array]
POSITIONS = ("sinusoidal", "learned", "shaw", "t5", "alibi", "rope", "none")
"""The encodings whose formulas are written here."""
T5_SCALE = 16.0
"""What multiplies the table of T5's biases in a model trained here."""
erf = np.vectorize(math.erf, otypes=[float])


def checkpoint(model: Any) -> dict[str, Array]:
    """The tensors of a model by name, in float64."""
    return {name: x.detach().double().cpu().numpy() for name, x in model.state_dict().items()}


def encoder_maps(model: Any, ids: Sequence[int], *, stack: str) -> tuple[Array, list[Array]]:
    """The last vectors of an encoder, and the weights [h, n, n] of each layer."""
    state = checkpoint(model)
    x_nw = embedded(state, model.config, ids, stack)
    out, self_weights, _ = run_stack(state, model.config, stack, x_nw, causal=False)
    return out, self_weights


def decoder_maps(
    model: Any, ids: Sequence[int], *, stack: str, memory: Array | None = None
) -> tuple[list[Array], list[Array]]:
    """The weights of a decoder's self-attention and of its attention to `memory`."""
    state = checkpoint(model)
    x_nw = embedded(state, model.config, ids, stack)
    _, own, cross = run_stack(state, model.config, stack, x_nw, causal=True, memory=memory)
    return own, cross


def embedded(state: State, config: Any, ids: Sequence[int], stack: str) -> Array:
    """Token vectors, scaled, with absolute positions added."""
    table = state["embedding.table.weight"]
    width = table.shape[1]
    if "source_embedding.table.weight" in state and stack == "encoder":
        table = state["source_embedding.table.weight"]
    scale = width ** (0.5 if config.position == "sinusoidal" else 0.75)
    x_nw = table[list(ids)] * scale
    if config.position == "sinusoidal":
        x_nw = x_nw + sinusoids(len(ids), width)
    if config.position == "learned":
        x_nw = x_nw + state[f"{stack}.position.table.weight"][: len(ids)] * scale
    return x_nw


def sinusoids(n: int, width: int) -> Array:
    angles = np.arange(n)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    out = np.zeros((n, width))
    out[:, 0::2], out[:, 1::2] = np.sin(angles), np.cos(angles)
    return out


def run_stack(
    state: State,
    config: Any,
    stack: str,
    x_nw: Array,
    *,
    causal: bool,
    memory: Array | None = None,
) -> tuple[Array, list[Array], list[Array]]:
    """All blocks; pre-norm or post-norm."""
    pre, own, cross = config.norm_place == "pre", [], []
    layers = 1 + max(
        int(name.split(".")[2]) for name in state if name.startswith(f"{stack}.blocks.")
    )

    def norm(x: Array, name: str) -> Array:
        return normalize(state, config, name, x)

    for layer in range(layers):
        block = f"{stack}.blocks.{layer}"
        position = _position_name(state, stack, "", layer)
        query = norm(x_nw, f"{block}.attention_norm") if pre else x_nw
        out, weights = attention(
            state, config, f"{block}.attention", position, query, query, causal=causal
        )
        own.append(weights)
        x_nw = x_nw + out if pre else norm(x_nw + out, f"{block}.attention_norm")
        if memory is not None:
            query = norm(x_nw, f"{block}.cross_norm") if pre else x_nw
            acts = config.cross_position and config.position in ("shaw", "t5", "alibi", "rope")
            across = _position_name(state, stack, "cross_", layer) if acts else None
            out, weights = attention(
                state, config, f"{block}.cross", across, query, memory, causal=False
            )
            cross.append(weights)
            x_nw = x_nw + out if pre else norm(x_nw + out, f"{block}.cross_norm")
        inner = norm(x_nw, f"{block}.feed_forward_norm") if pre else x_nw
        out = feed_forward(state, config, f"{block}.feed_forward", inner)
        x_nw = x_nw + out if pre else norm(x_nw + out, f"{block}.feed_forward_norm")
    return (norm(x_nw, f"{stack}.norm") if pre else x_nw), own, cross


def _position_name(state: State, stack: str, prefix: str, layer: int) -> str:
    own = f"{stack}.{prefix}layer_positions.{layer - 1}"
    return own if any(name.startswith(own) for name in state) else f"{stack}.{prefix}position"


def linear(state: State, name: str, x: Array) -> Array:
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def normalize(state: State, config: Any, name: str, x: Array) -> Array:
    """LayerNorm, or RMSNorm."""
    if config.norm == "rms":
        return (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * state[f"{name}.weight"]
        )
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * state[f"{name}.weight"]
    return x + state.get(f"{name}.bias", 0.0)


def feed_forward(state: State, config: Any, name: str, x: Array) -> Array:
    hidden = linear(state, f"{name}.up", x)
    if config.activation == "swiglu":
        gate, value = np.split(hidden, 2, axis=-1)
        hidden = gate / (1 + np.exp(-gate)) * value
    elif config.activation == "silu":
        hidden = hidden / (1 + np.exp(-hidden))
    else:
        assert config.activation == "gelu"
        hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
    return linear(state, f"{name}.down", hidden)


def attention(
    state: State,
    config: Any,
    name: str,
    position: str | None,
    x_nw: Array,
    source_mw: Array,
    *,
    causal: bool,
) -> tuple[Array, Array]:
    """Multi-head attention, head by head: the output, and the weights [h, n, m]."""
    heads, groups = config.heads, config.kv_heads or config.heads
    d = config.head_width or config.width // heads
    if f"{name}.qkv.weight" in state:
        parts = np.split(linear(state, f"{name}.qkv", x_nw), [heads * d, (heads + groups) * d], -1)
    else:
        parts = [
            linear(state, f"{name}.q", x_nw),
            *np.split(linear(state, f"{name}.kv", source_mw), 2, -1),
        ]
    n, m = len(x_nw), len(source_mw)
    distance = np.arange(m)[None, :] - np.arange(n)[:, None]
    outs, weights = [], []
    for head in range(heads):
        group = head // (heads // groups)
        q = parts[0][:, head * d : (head + 1) * d]
        k, v = (part[:, group * d : (group + 1) * d] for part in parts[1:])
        if config.qk_norm:
            q, k = (
                x / np.sqrt((x**2).mean(-1, keepdims=True) + np.finfo(np.float64).eps) * scale
                for x, scale in (
                    (q, state[f"{name}.q_norm.weight"]),
                    (k, state[f"{name}.k_norm.weight"]),
                )
            )
        scale = config.scale or d**-0.5
        if position is not None and config.position == "rope":
            q, k = rotated(q, config.rope_base), rotated(k, config.rope_base)
        scores = q @ k.T * scale
        if position is not None:
            scores = scores + bias(state, config, position, head, q * scale, distance, causal)
        if causal:
            scores = np.where(distance > 0, -np.inf, scores)
        exp = np.exp(scores - scores.max(-1, keepdims=True))
        share = exp / exp.sum(-1, keepdims=True)
        weights.append(share)
        out = share @ v
        if position is not None and config.position == "shaw" and config.shaw_values:
            rows = np.clip(distance, -config.shaw_clip, config.shaw_clip) + config.shaw_clip
            out = out + np.einsum(
                "nm,nmd->nd", share, state[f"{position}.value_vectors.weight"][rows]
            )
        outs.append(out)
    merged = merge(np.stack(outs), config.merge)
    return linear(state, f"{name}.out", merged.transpose(1, 0, 2).reshape(n, -1)), np.stack(weights)


def bias(
    state: State, config: Any, position: str, head: int, q: Array, distance: Any, causal: bool
) -> Array | float:
    """What an encoding adds to one head's scores; `q` is scaled."""
    if config.position == "alibi":
        assert config.heads & (config.heads - 1) == 0, "a power of two"
        return -(2.0 ** (-8.0 * (head + 1) / config.heads)) * np.abs(distance)
    if config.position == "shaw":
        rows = np.clip(distance, -config.shaw_clip, config.shaw_clip) + config.shaw_clip
        return np.einsum("nd,nmd->nm", q, state[f"{position}.keys.weight"][rows])
    if config.position == "t5":
        table = state[f"{position}.table.weight"][:, head]
        buckets = np.vectorize(lambda x: t5_bucket(x, config, causal))(distance)
        return np.asarray(T5_SCALE * table[buckets])
    return 0.0


def t5_bucket(distance: int, config: Any, causal: bool) -> int:
    """Half the buckets for near keys, the rest logarithmic; two directions unless causal."""
    buckets, first = config.t5_buckets, 0
    if causal:
        distance = max(0, -distance)
    else:
        buckets //= 2
        first, distance = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(config.t5_distance / exact)
    return first + min(buckets - 1, exact + int(share * (buckets - exact)))


def rotated(x_nd: Array, base: float) -> Array:
    n, d = x_nd.shape
    angles = np.arange(n)[:, None] * base ** (-np.arange(0, d, 2) / d)
    complex_nd = (x_nd[:, : d // 2] + 1j * x_nd[:, d // 2 :]) * np.exp(1j * angles)
    return np.concatenate([complex_nd.real, complex_nd.imag], axis=-1)


def merge(heads_hnd: Array, name: str) -> Array:
    """The heads as a merge changes them at inference."""
    if name == "shuffle":
        return np.broadcast_to(heads_hnd.mean(0), heads_hnd.shape)
    if name == "shift":
        return np.concatenate([heads_hnd[-1:], heads_hnd[:-1]])
    if name == "reweight":
        norms = np.sqrt((heads_hnd**2).sum(-1, keepdims=True))
        return heads_hnd * norms / norms.sum(0)
    assert name == "concat"
    return heads_hnd
