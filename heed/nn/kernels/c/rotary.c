/* Rotary position embedding on a CPU in one pass over the numbers (RoPE, Su et al. 2021).

   Each pair (i, i + d/2) of a head is rotated by its token's angle for i. Numbers are float32, or
   bfloat16 that is rotated in float32. nn/kernels/rotary_cpu.py mirrors Call, field by field.

   Shapes: b batch, n tokens, h heads, d head width. */

#include "bfloat16.h"

/* Heads [b, heads, n, d]: strides in numbers; the numbers of a head are adjacent. */
typedef struct {
    void *start;
    int64_t b, h, n;
} Heads;

/* Numbers of each token [b, n, d/2]: strides in numbers. */
typedef struct {
    const float *start;
    int64_t b, n;
} Table;

typedef struct {
    Heads x, out;
    Table cos, sin;
    int32_t sequences, tokens, heads, half, is_narrow, threads;
} Call;

static void rotate_wide(const float *restrict x, float *restrict out, const float *restrict cos,
                        const float *restrict sin, int32_t half) {
#pragma omp simd
    for (int32_t i = 0; i < half; i++) {
        out[i] = x[i] * cos[i] - x[i + half] * sin[i];
        out[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
    }
}

static void rotate_narrow(const uint16_t *restrict x, uint16_t *restrict out,
                          const float *restrict cos, const float *restrict sin, int32_t half) {
#pragma omp simd
    for (int32_t i = 0; i < half; i++) {
        float first = widen(x[i]), second = widen(x[i + half]);
        out[i] = narrow(first * cos[i] - second * sin[i]);
        out[i + half] = narrow(second * cos[i] + first * sin[i]);
    }
}

/* The numbers of all heads, rotated. */
void rotate(const Call *call) {
    const Heads x = call->x, out = call->out;
    int64_t rows = (int64_t)call->sequences * call->tokens;
#pragma omp parallel for num_threads(call->threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t b = row / call->tokens, n = row % call->tokens;
        const float *cos = call->cos.start + b * call->cos.b + n * call->cos.n;
        const float *sin = call->sin.start + b * call->sin.b + n * call->sin.n;
        for (int32_t h = 0; h < call->heads; h++) {
            int64_t from = b * x.b + h * x.h + n * x.n, to = b * out.b + h * out.h + n * out.n;
            if (call->is_narrow)
                rotate_narrow((const uint16_t *)x.start + from, (uint16_t *)out.start + to, cos,
                              sin, call->half);
            else
                rotate_wide((const float *)x.start + from, (float *)out.start + to, cos, sin,
                            call->half);
        }
    }
}
