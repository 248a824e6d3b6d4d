/* Residual add, dropout and norm in one pass over memory, forward and backward, for training.

   The plain twin is `add_norm` of nn/kernels/residual_norm.py. A row is read from memory once and
   stays in the CPU's nearest cache, where the loops over it are cheap. The dropout mask is never
   stored: both passes compute it from the same seed. The gradients of the norm's weight and bias
   are sums over all rows. They are added up within blocks of rows, then block by block, so that no
   result depends on the number of threads.

   The stream and its gradient are float32; other tensors may be bfloat16 where a flag says so.

   Shapes: r rows, w width. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bfloat16.h"

#define BLOCK 64    /* rows whose gradients of weight and bias are added up together */
#define GRAIN 32768 /* numbers for which a second thread is worth its start, as torch counts them */

/* Rows that go through each loop together, before any goes through the next: the CPU works on the
   next row while it waits for the sum of one. */
#define ROWS 4

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ------------------------------------------------------------------------------ bfloat16 */

/* A row as float32: itself, or where it is bfloat16 a copy in `buffer`. */
static const float *read_row(const void *x, int64_t row, int32_t w, int32_t is_narrow,
                             float *restrict buffer) {
    if (!is_narrow) return (const float *)x + row * w;
    widen_row((const uint16_t *)x + row * w, buffer, w);
    return buffer;
}

/* Where a row's float32 numbers are to be written: in place, or in `buffer` before rounding. */
static float *place_row(void *x, int64_t row, int32_t w, int32_t is_narrow, float *buffer) {
    return is_narrow ? buffer : (float *)x + row * w;
}

static void round_row(const float *restrict buffer, void *x, int64_t row, int32_t w) {
    narrow_row(buffer, (uint16_t *)x + row * w, w);
}

/* ------------------------------------------------------------------------------- dropout */

/* Dropout of one row: 32 random bits of each number are compared with a threshold. */
typedef struct {
    uint32_t add, flip; /* the row's key */
    uint32_t threshold; /* numbers whose bits are below are dropped */
    float scale;
} RowDropout;

/* The last step of SplitMix64 (Steele et al. 2014): each bit depends on all bits of x. */
static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A row's key is a number of the sequence SplitMix64 that the seed begins. */
static RowDropout begin_row(uint64_t seed, int64_t row, double dropped) {
    const uint64_t key = mix(mix(seed) + (uint64_t)(row + 1) * 0x9e3779b97f4a7c15u);
    const double threshold = dropped * 4294967296.0 + 0.5;
    return (RowDropout){
        (uint32_t)key,
        (uint32_t)(key >> 32),
        threshold < 4294967295.0 ? (uint32_t)threshold : 4294967295u,
        (float)(1.0 / (1.0 - dropped)),
    };
}

/* x / (1 - p), or zero. The bits are a hash of column and key, by multiplications of 32 bits, which
   every CPU has for whole vectors. The factors are those of Ellis's search for a small bias
   (hash-prospector); the steps that change no high bits are left out. */
static inline float drop(float x, uint32_t column, RowDropout dropout) {
    uint32_t bits = column * 0x9e3779b9u + dropout.add;
    bits = (bits ^ bits >> 16) * 0x21f0aaadu ^ dropout.flip;
    bits = (bits ^ bits >> 15) * 0x735a2d97u;
    return bits >= dropout.threshold ? x * dropout.scale : 0.0f;
}

static void drop_row(const float *restrict x, float *restrict out, int32_t w, RowDropout dropout) {
#pragma omp simd
    for (int32_t i = 0; i < w; i++) out[i] = drop(x[i], (uint32_t)i, dropout);
}

/* Dropout of x [r, w]. Its gradient is the same function of the output's gradient. */
void drop_rows(const float *x, float *out, int64_t rows, int32_t w, uint64_t seed, double dropped,
               int32_t threads) {
    if (rows * w < GRAIN) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        drop_row(x + row * w, out + row * w, w, begin_row(seed, row, dropped));
}

/* ------------------------------------------------------------------------------- forward */

static float sum_row(const float *restrict x, int32_t w) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < w; i++) sum += x[i];
    return sum;
}

static float sum_squares(const float *restrict x, int32_t w, float mean) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < w; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

/* stream = x + dropout(branch); returns the sum of the row. */
static float add_row(const float *restrict x, const float *restrict branch, float *restrict stream,
                     int32_t w) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < w; i++) {
        stream[i] = x[i] + branch[i];
        sum += stream[i];
    }
    return sum;
}

static float add_dropped_row(const float *restrict x, const float *restrict branch,
                             float *restrict stream, int32_t w, RowDropout dropout) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < w; i++) {
        stream[i] = x[i] + drop(branch[i], (uint32_t)i, dropout);
        sum += stream[i];
    }
    return sum;
}

static void scale_row(const float *restrict x, const float *restrict weight,
                      const float *restrict bias, float *restrict out, int32_t w, float mean,
                      float factor) {
    if (bias) {
#pragma omp simd
        for (int32_t i = 0; i < w; i++) out[i] = (x[i] - mean) * factor * weight[i] + bias[i];
    } else {
#pragma omp simd
        for (int32_t i = 0; i < w; i++) out[i] = (x[i] - mean) * factor * weight[i];
    }
}

/* The stream [r, w], its norm [r, w], and each row's mean and reciprocal deviation [2, r]. Without
   a branch the stream is x and is not written. RMSNorm is a norm that is not centered. */
void add_norm(const float *x, const void *branch, const float *weight, const float *bias,
              float *stream, void *normed, float *moments, int64_t rows, int32_t w, float eps,
              int32_t is_centered, int32_t is_branch_narrow, int32_t is_normed_narrow,
              uint64_t seed, double dropped, int32_t threads) {
    const int64_t groups = (rows + ROWS - 1) / ROWS;
    float *means = moments, *factors = moments + rows;
    if (rows * w < GRAIN) threads = 1;
#pragma omp parallel num_threads(threads)
    {
        float branch_buffer[w], normed_buffer[w];
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; group++) {
            const int64_t from = group * ROWS, to = least(from + ROWS, rows);
            for (int64_t row = from; row < to; row++) {
                const float *in = x + row * w;
                float *out = stream + row * w, sum = 0.0f;
                if (!branch) {
                    if (is_centered) sum = sum_row(in, w);
                } else {
                    const float *added = read_row(branch, row, w, is_branch_narrow, branch_buffer);
                    sum = dropped > 0.0
                              ? add_dropped_row(in, added, out, w, begin_row(seed, row, dropped))
                              : add_row(in, added, out, w);
                }
                means[row] = is_centered ? sum / w : 0.0f;
            }
            for (int64_t row = from; row < to; row++) {
                const float square = sum_squares(stream + row * w, w, means[row]) / w;
                factors[row] = 1.0f / __builtin_sqrtf(square + eps);
            }
            for (int64_t row = from; row < to; row++) {
                float *out = place_row(normed, row, w, is_normed_narrow, normed_buffer);
                scale_row(stream + row * w, weight, bias, out, w, means[row], factors[row]);
                if (is_normed_narrow) round_row(out, normed, row, w);
            }
        }
    }
}

/* ------------------------------------------------------------------------------ backward */

typedef struct {
    float own, along; /* means of the gradient, and of its product with the normalized row */
} Projections;

/* The row's part of the gradients of weight and bias, and what its own gradient has to lose. */
static Projections project_row(const float *restrict x, const float *restrict d_normed,
                               const float *restrict weight, float *restrict d_weight,
                               float *restrict d_bias, int32_t w, float mean, float factor) {
    float own = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : own, along)
    for (int32_t i = 0; i < w; i++) {
        const float unit = (x[i] - mean) * factor, d = d_normed[i] * weight[i];
        d_weight[i] += d_normed[i] * unit;
        d_bias[i] += d_normed[i];
        own += d;
        along += d * unit;
    }
    return (Projections){own / w, along / w};
}

/* The gradient of the stream: through the norm and, where there is one, of the stream itself. */
static void differentiate_row(const float *restrict x, const float *restrict d_normed,
                              const float *restrict d_stream, const float *restrict weight,
                              float *restrict dx, int32_t w, float mean, float factor,
                              Projections lost) {
    /* d = (d_normed · weight - own - unit · along) · factor, with unit = (x - mean) · factor */
    const float slope = -lost.along * factor * factor, level = -lost.own * factor;
    if (d_stream) {
#pragma omp simd
        for (int32_t i = 0; i < w; i++)
            dx[i] = (d_normed[i] * weight[i] * factor + d_stream[i]) +
                    ((x[i] - mean) * slope + level);
    } else {
#pragma omp simd
        for (int32_t i = 0; i < w; i++)
            dx[i] = d_normed[i] * weight[i] * factor + ((x[i] - mean) * slope + level);
    }
}

/* Gradients of x and of the branch [r, w], of weight and bias [w]. `d_stream` is null where nothing
   but the norm is used, `d_branch` where it equals `dx`; `parts` [blocks, 2, w] is scratch. */
void add_norm_backward(const float *stream, const float *moments, const float *weight,
                       const float *d_stream, const void *d_normed, float *dx, void *d_branch,
                       float *d_weight, float *d_bias, float *parts, int64_t rows, int32_t w,
                       int32_t is_centered, int32_t is_branch_narrow, int32_t is_normed_narrow,
                       uint64_t seed, double dropped, int32_t threads) {
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK;
    if (rows * w < GRAIN) threads = 1;
#pragma omp parallel num_threads(threads)
    {
        float branch_buffer[w], normed_buffer[w];
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t end = least((block + 1) * BLOCK, rows);
            float *part = parts + block * 2 * w;
            memset(part, 0, 2 * (size_t)w * sizeof *part);
            for (int64_t row = block * BLOCK; row < end; row++) {
                const float *x = stream + row * w;
                const float mean = moments[row], factor = moments[rows + row];
                const float *passed = d_stream ? d_stream + row * w : NULL;
                const float *dy = read_row(d_normed, row, w, is_normed_narrow, normed_buffer);
                float *d = dx + row * w;
                Projections lost = project_row(x, dy, weight, part, part + w, w, mean, factor);
                if (!is_centered) lost.own = 0.0f;
                differentiate_row(x, dy, passed, weight, d, w, mean, factor, lost);
                if (!d_branch) continue;
                float *out = place_row(d_branch, row, w, is_branch_narrow, branch_buffer);
                if (dropped > 0.0)
                    drop_row(d, out, w, begin_row(seed, row, dropped));
                else
                    memcpy(out, d, (size_t)w * sizeof *d);
                if (is_branch_narrow) round_row(out, d_branch, row, w);
            }
        }
    }
    memset(d_weight, 0, (size_t)w * sizeof *d_weight);
    memset(d_bias, 0, (size_t)w * sizeof *d_bias);
    for (int64_t block = 0; block < blocks; block++) {
        const float *part = parts + block * 2 * w;
#pragma omp simd
        for (int32_t i = 0; i < w; i++) {
            d_weight[i] += part[i];
            d_bias[i] += part[w + i];
        }
    }
}
