/* Heads and what is known of each token, as the attention kernels read them.

   nn/kernels/attention_structs.py mirrors both structs, field by field.

   Shapes: b batch, n tokens, d head width. */

#ifndef HEED_HEADS_H
#define HEED_HEADS_H

#include <stdint.h>

/* Heads [b, heads, n, d]: strides in numbers; the numbers of a head are adjacent. */
typedef struct {
    float *start;
    int64_t b, h, n;
} Heads;

/* One number [b, n] for each token, and its stride over the batch; or null. */
typedef struct {
    const void *start;
    int64_t b;
} PerToken;

#endif
