/* Bias and activation in one pass over memory; the backward pass also sums the bias's gradient.

   The Triton twin is nn/kernels/triton/bias_activation.py: the same formulas. With a gate, a row
   holds all gates first, then the values they multiply: silu(gate) · up. Numbers are float32, or
   bfloat16 that are widened on the way in and rounded on the way out; biases and sums are float32.

   Gradients of the bias are summed over blocks of rows, then over blocks in their order: a sum
   depends on no number of threads, to the last bit.

   Shapes: r rows, f feed-forward width, k 2 with a gate and else 1. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bfloat16.h"
#include "vector_math.h"

#define TILE 512      /* columns that are computed together: their buffers fit a CPU's cache */
#define BLOCK_ROWS 64 /* rows whose gradients of the bias are one sum */

#define INLINE static inline __attribute__((always_inline))

enum { GELU, GELU_TANH, SILU };

/* -------------------------------------------------------------------------- activations */

/* 1 / (1 + e^-x), and in *rest what it lacks to 1, which is 1 / (1 + e^x). */
INLINE float sigmoid(float x, float *rest) {
    float e = exponential_or_zero(-__builtin_fabsf(x));
    float more = 1.0f / (1.0f + e), less = e * more;
    *rest = x < 0.0f ? more : less;
    return x < 0.0f ? less : more;
}

/* Φ(x) of the normal distribution to 1e-7, as exact as torch's: 1/2 + x P(x²) / Q(x²), fitted to
   7e-9 for |x| ≤ 5.5. Beyond, 0 or 1. */
INLINE float normal_cdf(float x) {
    float z = x * x, p = 2.27493782e-8f, q = 1.19750465e-6f;
    p = p * z + 6.35212252e-6f;
    p = p * z + 1.68826160e-4f;
    p = p * z + 4.67726360e-3f;
    p = p * z + 3.38526931e-2f;
    p = p * z + 3.98942235e-1f;
    q = q * z + 7.36476653e-5f;
    q = q * z + 1.88444757e-3f;
    q = q * z + 2.86458985e-2f;
    q = q * z + 2.51522036e-1f;
    q = q * z + 1.0f;
    float cdf = 0.5f + x * (p / q);
    cdf = x < -5.5f ? 0.0f : cdf;
    return x > 5.5f ? 1.0f : cdf;
}

/* The activation, and in *slope its derivative. What the caller does not use is not computed. */
INLINE float activation(float x, int kind, float *slope) {
    if (kind == GELU) {
        float cdf = normal_cdf(x);
        *slope = cdf + x * (0.3989422804f * exponential_or_zero(-0.5f * x * x));
        return x * cdf;
    }
    float square = x * x, u = x, inner = 1.0f, rest;
    if (kind == GELU_TANH) { /* (1 + tanh(v)) / 2 is sigmoid(2v), v = √(2/π) (x + 0.044715x³) */
        u = 1.5957691216f * x * (1.0f + 0.044715f * square);
        inner = 1.5957691216f * (1.0f + 0.134145f * square);
    }
    float share = sigmoid(u, &rest);
    *slope = share * (1.0f + x * rest * inner);
    return x * share;
}

/* ------------------------------------------------------------------------------ columns */

INLINE void activate_columns(const float *restrict x, const float *restrict bias,
                             const float *restrict up, const float *restrict up_bias,
                             float *restrict out, ptrdiff_t n, int kind, int is_gated) {
    for (ptrdiff_t i = 0; i < n; i++) {
        float slope, y = activation(x[i] + bias[i], kind, &slope);
        out[i] = is_gated ? y * (up[i] + up_bias[i]) : y;
    }
}

INLINE void differentiate_columns(const float *restrict x, const float *restrict bias,
                                  const float *restrict up, const float *restrict up_bias,
                                  const float *restrict d_out, float *restrict dx,
                                  float *restrict d_up, float *restrict sums,
                                  float *restrict up_sums, ptrdiff_t n, int kind, int is_gated) {
    for (ptrdiff_t i = 0; i < n; i++) {
        float slope, y = activation(x[i] + bias[i], kind, &slope), d = d_out[i];
        if (is_gated) {
            d_up[i] = d * y;
            up_sums[i] += d * y;
            d *= up[i] + up_bias[i];
        }
        dx[i] = d * slope;
        sums[i] += d * slope;
    }
}

/* One loop for each activation, with and without a gate: the compiler vectorizes each. */
#define FOR_EACH_KIND(RUN)                                                                         \
    switch (2 * kind + (is_gated != 0)) {                                                          \
    case 2 * GELU: RUN(GELU, 0); break;                                                            \
    case 2 * GELU + 1: RUN(GELU, 1); break;                                                        \
    case 2 * GELU_TANH: RUN(GELU_TANH, 0); break;                                                  \
    case 2 * GELU_TANH + 1: RUN(GELU_TANH, 1); break;                                              \
    case 2 * SILU: RUN(SILU, 0); break;                                                            \
    case 2 * SILU + 1: RUN(SILU, 1); break;                                                        \
    }

/* ----------------------------------------------------------------------------- bfloat16 */

/* n numbers of a row from `start`, as float32: where they are, or, of bfloat16, in `buffer`. */
static const float *load(const void *row, ptrdiff_t start, ptrdiff_t n, float *buffer,
                         int is_bfloat16) {
    if (!is_bfloat16) return (const float *)row + start;
    widen_row((const uint16_t *)row + start, buffer, n);
    return buffer;
}

/* Where to write n numbers of a row from `start`: there, or, of bfloat16, into `buffer` first. */
static float *target(void *row, ptrdiff_t start, float *buffer, int is_bfloat16) {
    return is_bfloat16 ? buffer : (float *)row + start;
}

/* Round the numbers in `buffer` to bfloat16. */
static void store(void *row, ptrdiff_t start, ptrdiff_t n, const float *buffer, int is_bfloat16) {
    if (is_bfloat16) narrow_row(buffer, (uint16_t *)row + start, n);
}

static inline void *at(const void *start, ptrdiff_t numbers, int is_bfloat16) {
    return (char *)start + numbers * (is_bfloat16 ? 2 : 4);
}

/* --------------------------------------------------------------------------------- rows */

/* out [r, f] = activation(h + bias), of h [r, k·f] and bias [k·f]. */
void activate(const void *h, const float *bias, void *out, int64_t rows, int64_t f, int32_t kind,
              int32_t is_gated, int32_t is_bfloat16, int32_t threads) {
    ptrdiff_t wide = is_gated ? 2 * f : f;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (ptrdiff_t row = 0; row < rows; row++) {
        float buffers[3][TILE];
        const void *h_row = at(h, row * wide, is_bfloat16);
        void *out_row = at(out, row * f, is_bfloat16);
        for (ptrdiff_t start = 0; start < f; start += TILE) {
            ptrdiff_t n = f - start < TILE ? f - start : TILE, up_start = wide - f + start;
            const float *x = load(h_row, start, n, buffers[0], is_bfloat16), *up = x;
            if (is_gated) up = load(h_row, up_start, n, buffers[1], is_bfloat16);
            float *y = target(out_row, start, buffers[2], is_bfloat16);
#define RUN(KIND, IS_GATED)                                                                        \
    activate_columns(x, bias + start, up, bias + up_start, y, n, KIND, IS_GATED)
            FOR_EACH_KIND(RUN)
#undef RUN
            store(out_row, start, n, y, is_bfloat16);
        }
    }
}

/* Sums of the bias's gradient: one row of k·f for each block of rows. */
int64_t block_count(int64_t rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

/* dh [r, k·f] and d_bias [k·f] of d_out [r, f]; `sums` holds block_count(r) rows of k·f. */
void differentiate(const void *h, const float *bias, const void *d_out, void *dh, float *d_bias,
                   float *sums, int64_t rows, int64_t f, int32_t kind, int32_t is_gated,
                   int32_t is_bfloat16, int32_t threads) {
    ptrdiff_t wide = is_gated ? 2 * f : f, blocks = block_count(rows);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (ptrdiff_t block = 0; block < blocks; block++) {
        float buffers[5][TILE], *sums_row = sums + block * wide;
        memset(sums_row, 0, wide * sizeof *sums);
        ptrdiff_t end = (block + 1) * BLOCK_ROWS < rows ? (block + 1) * BLOCK_ROWS : rows;
        for (ptrdiff_t row = block * BLOCK_ROWS; row < end; row++) {
            const void *h_row = at(h, row * wide, is_bfloat16);
            const void *d_row = at(d_out, row * f, is_bfloat16);
            void *dh_row = at(dh, row * wide, is_bfloat16);
            for (ptrdiff_t start = 0; start < f; start += TILE) {
                ptrdiff_t n = f - start < TILE ? f - start : TILE, up_start = wide - f + start;
                const float *x = load(h_row, start, n, buffers[0], is_bfloat16), *up = x;
                const float *d = load(d_row, start, n, buffers[1], is_bfloat16);
                float *dx = target(dh_row, start, buffers[2], is_bfloat16), *d_up = dx;
                if (is_gated) {
                    up = load(h_row, up_start, n, buffers[3], is_bfloat16);
                    d_up = target(dh_row, up_start, buffers[4], is_bfloat16);
                }
#define RUN(KIND, IS_GATED)                                                                        \
    differentiate_columns(x, bias + start, up, bias + up_start, d, dx, d_up, sums_row + start,     \
                          sums_row + up_start, n, KIND, IS_GATED)
                FOR_EACH_KIND(RUN)
#undef RUN
                store(dh_row, start, n, dx, is_bfloat16);
                if (is_gated) store(dh_row, up_start, n, d_up, is_bfloat16);
            }
        }
    }
    memset(d_bias, 0, wide * sizeof *d_bias);
    for (ptrdiff_t block = 0; block < blocks; block++)
        for (ptrdiff_t i = 0; i < wide; i++) d_bias[i] += sums[block * wide + i];
}
