/* The arguments of attention over short sequences (short_attention.c).

   nn/kernels/short_attention_cpu.py mirrors both structs, field by field.

   Shapes: b batch, n queries, m keys, h query heads. */

#ifndef HEED_SHORT_ATTENTION_H
#define HEED_SHORT_ATTENTION_H

#include "heads.h"

#define MULTIPLE 16 /* rows of weights and of the bias are padded to a multiple of it */

typedef struct {
    Heads q, k, v;
    float *weights;       /* [b, h, n, row], row is m padded */
    const float *bias;    /* [h, n, row of at least the weights' row], or null */
    int64_t bias_h, bias_n;
    PerToken real;                   /* uint8 [b, m]: 0 where a key is padding */
    PerToken q_segments, k_segments; /* int64 [b, n] and [b, m] */
    float scale;
    int32_t sequences, queries, keys, heads, kv_heads, width;
    int32_t is_causal; /* the queries are the last of the keys */
    int32_t threads;
} Call;

typedef struct {
    Heads d_out, dq, dk, dv;
    float *d_scores; /* [b, h, n, row], or null where the bias does not learn */
} AttentionGradients;

#endif
