/* Pre-norm blocks of self-attention and feed-forward that train on a CPU in float32: the forward
   pass of all is one call, their backward pass another.

       stream = x + dropout(branch)
       attended = out(attention(qkv(norm(stream))))
       last_stream = stream + dropout(attended)
       last_branch = down(activation(up(norm(last_stream))))

   The numbers are computed by the kernels of the block's parts, which are called through pointers,
   and the plain twin is those parts in Python. In a small model the steps between kernels take as
   long as kernels do. Matrix products are those of matrix_product.c or of MKL.

   nn/kernels/block_cpu.py mirrors Kernels, Block and Gradients, field by field.

   Shapes: b sequences, n tokens, r = b · n rows, w model width, h query heads, g key and value
   heads, d head width, c = (h + 2 g) · d, f feed-forward width, k 2 with a gate and else 1. */

#include <stddef.h>
#include <string.h>

#include "matrix_product.h"
#include "short_attention.h"

#define ALIGNMENT 16  /* numbers: 64 bytes */
#define NORM_BLOCK 64 /* rows of a part of the norm's gradients, as in residual_norm.c */
#define SUM_ROWS 64
#define SUM_COLUMNS 64
#define GRAIN 32768 /* numbers for which a second thread is worth its start */

/* The kernels of the parts; of the two products, one is null. */
typedef struct {
    void (*add_norm)(const float *x, const void *branch, const float *weight, const float *bias,
                     float *stream, void *normed, float *moments, int64_t rows, int32_t w,
                     float eps, int32_t is_centered, int32_t is_branch_narrow,
                     int32_t is_normed_narrow, uint64_t seed, double dropped, int32_t threads);
    void (*add_norm_backward)(const float *stream, const float *moments, const float *weight,
                              const float *d_stream, const void *d_normed, float *dx,
                              void *d_branch, float *d_weight, float *d_bias, float *parts,
                              int64_t rows, int32_t w, int32_t is_centered,
                              int32_t is_branch_narrow, int32_t is_normed_narrow, uint64_t seed,
                              double dropped, int32_t threads);
    void (*attend)(const Call *call, const Heads *out);
    void (*attend_backward)(const Call *call, const AttentionGradients *gradients);
    void (*activate)(const void *h, const float *bias, void *out, int64_t rows, int64_t f,
                     int32_t kind, int32_t is_gated, int32_t is_bfloat16, int32_t threads);
    void (*activate_backward)(const void *h, const float *bias, const void *d_out, void *dh,
                              float *d_bias, float *sums, int64_t rows, int64_t f, int32_t kind,
                              int32_t is_gated, int32_t is_bfloat16, int32_t threads);
    int64_t (*block_count)(int64_t rows);
    void (*multiply)(const Product *product, int32_t threads);
    void (*sgemm)(const char *trans_a, const char *trans_b, const int *m, const int *n,
                  const int *k, const float *alpha, const float *a, const int *lda, const float *b,
                  const int *ldb, const float *beta, float *c, const int *ldc);
} Kernels;

/* Parameters in the order of use, or their gradients; each bias may be null. */
typedef struct {
    float *norm, *norm_bias, *qkv, *qkv_bias, *out, *out_bias;
    float *last_norm, *last_norm_bias, *up, *up_bias, *down, *down_bias;
} Parameters;

typedef struct {
    const Kernels *run;
    Parameters parameters;
    const float *x, *branch;          /* [r, w]; the branch may be null */
    float *last_stream, *last_branch; /* [r, w] */
    float *kept;                      /* what the backward pass reads */
    const float *rotation;            /* cosines and sines [b or 1, n, 2, d/2], or null */
    int64_t rotation_b;               /* its stride over the batch */
    PerToken real, segments;          /* as in Call */
    int64_t sequences, tokens, width, heads, kv_heads, head_width, hidden;
    int64_t kind, is_gated, is_causal, threads;
    uint64_t seed, last_seed; /* of dropout in both sums */
    double dropped, last_dropped;
    double scale, eps, last_eps;
    int64_t is_centered, last_is_centered;
} Block;

/* Gradients of the outputs (the stream's may be null), and where to write those of inputs. Those of
   parameters are null where they are not wanted. `d_branch` is null where it equals `dx`. */
typedef struct {
    Parameters parameters;
    const float *d_last_stream, *d_last_branch;
    float *dx, *d_branch;
    float *scratch;
} Gradients;

/* What the backward pass reads beside inputs and outputs. */
typedef struct {
    float *stream, *moments, *normed, *qkv, *weights, *attended;
    float *last_moments, *last_normed, *up, *activated, *up_bias;
} Kept;

/* -------------------------------------------------------------------------------- sizes */

static int64_t count_rows(const Block *x) { return x->sequences * x->tokens; }

static int64_t qkv_width(const Block *x) {
    return (x->heads + 2 * x->kv_heads) * x->head_width;
}

static int64_t up_width(const Block *x) { return (x->is_gated ? 2 : 1) * x->hidden; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int few_threads(const Block *x, int64_t numbers) {
    return numbers < GRAIN ? 1 : (int)x->threads;
}

/* Take `count` numbers of memory that begins at `start`. */
static float *take(float *start, int64_t *taken, int64_t count) {
    float *from = start + *taken;
    *taken += (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return from;
}

static Kept place_kept(const Block *x, int64_t *taken) {
    int64_t r = count_rows(x), w = x->width;
    int64_t row = (x->tokens + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
    float *start = x->kept;
    Kept kept;
    *taken = 0;
    kept.stream = x->branch ? take(start, taken, r * w) : (float *)x->x;
    kept.moments = take(start, taken, 2 * r);
    kept.normed = take(start, taken, r * w);
    kept.qkv = take(start, taken, r * qkv_width(x));
    kept.weights = take(start, taken, x->sequences * x->heads * x->tokens * row);
    kept.attended = take(start, taken, r * x->heads * x->head_width);
    kept.last_moments = take(start, taken, 2 * r);
    kept.last_normed = take(start, taken, r * w);
    kept.up = take(start, taken, r * up_width(x));
    kept.activated = take(start, taken, r * x->hidden);
    kept.up_bias = x->parameters.up_bias;
    if (!kept.up_bias) kept.up_bias = take(start, taken, up_width(x)); /* zeros */
    return kept;
}

/* How many numbers `kept` has. */
int64_t count_kept(const Block *x) {
    int64_t taken;
    place_kept(x, &taken);
    return taken;
}

/* ----------------------------------------------------------------------------- products */

typedef struct {
    const float *start;
    int64_t rows, columns, row_stride, column_stride;
} Matrix;

static Matrix matrix(const float *start, int64_t rows, int64_t columns) {
    return (Matrix){start, rows, columns, columns, 1};
}

static Matrix transposed(const float *start, int64_t rows, int64_t columns) {
    return (Matrix){start, columns, rows, 1, columns};
}

static void copy_to_rows(const float *bias, float *out, int64_t rows, int64_t columns,
                         int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < rows; row++)
        memcpy(out + row * columns, bias, columns * sizeof *out);
}

/* out = a b + bias; the bias may be null. */
static void multiply(const Block *x, Matrix a, Matrix b, const float *bias, float *out) {
    if (x->run->multiply) {
        Product product = {
            a.start, b.start, bias, out,
            a.row_stride, a.column_stride, b.row_stride, b.column_stride, b.columns,
            a.rows, b.columns, a.columns, 0,
        };
        x->run->multiply(&product, (int32_t)x->threads);
        return;
    }
    /* MKL's matrices have adjacent columns: for it this is outᵀ = bᵀ aᵀ. */
    const int m = (int)b.columns, n = (int)a.rows, k = (int)a.columns;
    const int b_is_turned = b.column_stride != 1, a_is_turned = a.column_stride != 1;
    /* A single row, with a stride of 1, is shorter than the distance of rows that MKL accepts. */
    const int ldb = (int)(b_is_turned ? b.column_stride : most(b.row_stride, b.columns));
    const int lda = (int)(a_is_turned ? a.column_stride : most(a.row_stride, a.columns));
    const float one = 1.0f, beta = bias ? 1.0f : 0.0f;
    if (bias) copy_to_rows(bias, out, a.rows, b.columns, few_threads(x, a.rows * b.columns));
    x->run->sgemm(b_is_turned ? "T" : "N", a_is_turned ? "T" : "N", &m, &n, &k, &one, b.start, &ldb,
                  a.start, &lda, &beta, out, &m);
}

/* The linear layer of x [r, columns]: x weightᵀ + bias. */
static void linear(const Block *x, const float *in, int64_t columns, const float *weight,
                   const float *bias, int64_t out_columns, float *out) {
    multiply(x, matrix(in, count_rows(x), columns), transposed(weight, out_columns, columns), bias,
             out);
}

/* Sums over rows, in the same order for any number of threads. */
static void sum_rows(const float *x, int64_t rows, int64_t columns, float *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t start = 0; start < columns; start += SUM_COLUMNS) {
        int64_t count = columns - start < SUM_COLUMNS ? columns - start : SUM_COLUMNS;
        float total[SUM_COLUMNS] = {0};
        for (int64_t from = 0; from < rows; from += SUM_ROWS) {
            int64_t to = from + SUM_ROWS < rows ? from + SUM_ROWS : rows;
            float part[SUM_COLUMNS] = {0};
            for (int64_t row = from; row < to; row++) {
                const float *numbers = x + row * columns + start;
                for (int64_t i = 0; i < count; i++) part[i] += numbers[i];
            }
            for (int64_t i = 0; i < count; i++) total[i] += part[i];
        }
        memcpy(out + start, total, count * sizeof *out);
    }
}

/* The gradients of a linear layer of `in` [r, columns] for d_out [r, out_columns]. */
static void linear_backward(const Block *x, const float *in, int64_t columns, const float *weight,
                            const float *d_out, int64_t out_columns, float *d_in, float *d_weight,
                            float *d_bias) {
    int64_t r = count_rows(x);
    if (d_weight)
        multiply(x, transposed(d_out, r, out_columns), matrix(in, r, columns), NULL, d_weight);
    if (d_bias) sum_rows(d_out, r, out_columns, d_bias, few_threads(x, r * out_columns));
    multiply(x, matrix(d_out, r, out_columns), matrix(weight, out_columns, columns), NULL, d_in);
}

/* ---------------------------------------------------------------------------- attention */

/* Rotate queries and keys in place by their token's angles, or back (RoPE, Su et al. 2021). */
static void rotate(const Block *x, float *qkv, float direction) {
    int64_t half = x->head_width / 2, rows = count_rows(x);
#pragma omp parallel for num_threads(few_threads(x, rows * x->width)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t b = row / x->tokens, n = row % x->tokens;
        const float *cosines = x->rotation + b * x->rotation_b + n * x->head_width;
        const float *sines = cosines + half;
        float *head = qkv + row * qkv_width(x);
        for (int64_t h = 0; h < x->heads + x->kv_heads; h++, head += x->head_width)
            for (int64_t i = 0; i < half; i++) {
                float first = head[i], second = head[i + half], sine = direction * sines[i];
                head[i] = first * cosines[i] - second * sine;
                head[i + half] = second * cosines[i] + first * sine;
            }
    }
}

/* Heads of rows of `columns` numbers, from `column` on. */
static Heads heads_at(const Block *x, float *start, int64_t columns, int64_t column) {
    return (Heads){start + column, x->tokens * columns, x->head_width, columns};
}

typedef struct {
    Heads q, k, v;
} Qkv;

static Qkv split(const Block *x, float *qkv) {
    int64_t c = qkv_width(x), keys = x->heads * x->head_width;
    int64_t values = keys + x->kv_heads * x->head_width;
    return (Qkv){heads_at(x, qkv, c, 0), heads_at(x, qkv, c, keys), heads_at(x, qkv, c, values)};
}

static Call pack(const Block *x, const Kept *kept) {
    Qkv heads = split(x, kept->qkv);
    return (Call){
        .q = heads.q, .k = heads.k, .v = heads.v, .weights = kept->weights,
        .real = x->real, .q_segments = x->segments, .k_segments = x->segments,
        .scale = (float)x->scale,
        .sequences = (int32_t)x->sequences, .queries = (int32_t)x->tokens,
        .keys = (int32_t)x->tokens, .heads = (int32_t)x->heads, .kv_heads = (int32_t)x->kv_heads,
        .width = (int32_t)x->head_width, .is_causal = (int32_t)x->is_causal,
        .threads = (int32_t)x->threads,
    };
}

/* -------------------------------------------------------------------------- both passes */

static void run(const Block *x) {
    const Kernels *kernels = x->run;
    const Parameters *p = &x->parameters;
    int64_t r = count_rows(x), w = x->width, f = x->hidden, taken;
    int64_t inner = x->heads * x->head_width, threads = x->threads;
    Kept kept = place_kept(x, &taken);
    kernels->add_norm(x->x, x->branch, p->norm, p->norm_bias, kept.stream, kept.normed,
                      kept.moments, r, w, x->eps, x->is_centered, 0, 0, x->seed, x->dropped,
                      threads);
    linear(x, kept.normed, w, p->qkv, p->qkv_bias, qkv_width(x), kept.qkv);
    if (x->rotation) rotate(x, kept.qkv, 1.0f);
    Call call = pack(x, &kept);
    Heads attended = heads_at(x, kept.attended, inner, 0);
    kernels->attend(&call, &attended);
    /* The branch of attention is where the last one will be: nothing reads it again. */
    linear(x, kept.attended, inner, p->out, p->out_bias, w, x->last_branch);
    kernels->add_norm(kept.stream, x->last_branch, p->last_norm, p->last_norm_bias, x->last_stream,
                      kept.last_normed, kept.last_moments, r, w, x->last_eps, x->last_is_centered,
                      0, 0, x->last_seed, x->last_dropped, threads);
    linear(x, kept.last_normed, w, p->up, NULL, up_width(x), kept.up);
    if (!p->up_bias) memset(kept.up_bias, 0, up_width(x) * sizeof(float));
    kernels->activate(kept.up, kept.up_bias, kept.activated, r, f, x->kind, x->is_gated, 0,
                      few_threads(x, r * f));
    linear(x, kept.activated, f, p->down, p->down_bias, w, x->last_branch);
}

/* What the backward pass writes and no one else reads. */
typedef struct {
    float *d_stream, *d_branch, *d_normed;
    float *d_inner; /* of what is activated, and of what is attended */
    float *d_wide;  /* of what is activated from, and of queries, keys and values */
    float *sums, *parts, *unwanted;
} Scratch;

static Scratch place_scratch(const Block *x, float *start, int64_t *taken) {
    int64_t r = count_rows(x), w = x->width, inner = x->heads * x->head_width;
    Scratch own;
    *taken = 0;
    own.d_stream = take(start, taken, r * w);
    own.d_branch = take(start, taken, r * w);
    own.d_normed = take(start, taken, r * w);
    own.d_inner = take(start, taken, r * most(x->hidden, inner));
    own.d_wide = take(start, taken, r * most(up_width(x), qkv_width(x)));
    own.sums = take(start, taken, x->run->block_count(r) * up_width(x));
    own.parts = take(start, taken, (r + NORM_BLOCK - 1) / NORM_BLOCK * 2 * w);
    own.unwanted = take(start, taken, most(w, up_width(x)));
    return own;
}

/* How many numbers `scratch` has. */
int64_t count_scratch(const Block *x) {
    int64_t taken;
    place_scratch(x, NULL, &taken);
    return taken;
}

static float *wanted(float *gradient, const Scratch *scratch) {
    return gradient ? gradient : scratch->unwanted;
}

static void run_backward(const Block *x, const Gradients *to) {
    const Kernels *kernels = x->run;
    const Parameters *p = &x->parameters, *d = &to->parameters;
    int64_t r = count_rows(x), w = x->width, f = x->hidden, taken;
    int64_t inner = x->heads * x->head_width, threads = x->threads;
    Kept kept = place_kept(x, &taken);
    Scratch own = place_scratch(x, to->scratch, &taken);

    linear_backward(x, kept.activated, f, p->down, to->d_last_branch, w, own.d_inner, d->down,
                    d->down_bias);
    kernels->activate_backward(kept.up, kept.up_bias, own.d_inner, own.d_wide,
                               wanted(d->up_bias, &own), own.sums, r, f, x->kind, x->is_gated, 0,
                               few_threads(x, r * f));
    linear_backward(x, kept.last_normed, w, p->up, own.d_wide, up_width(x), own.d_normed, d->up,
                    NULL);
    float *d_branch = x->last_dropped > 0.0 ? own.d_branch : own.d_stream;
    kernels->add_norm_backward(x->last_stream, kept.last_moments, p->last_norm, to->d_last_stream,
                               own.d_normed, own.d_stream,
                               d_branch == own.d_stream ? NULL : d_branch,
                               wanted(d->last_norm, &own), wanted(d->last_norm_bias, &own),
                               own.parts, r, w, x->last_is_centered, 0, 0, x->last_seed,
                               x->last_dropped, threads);

    linear_backward(x, kept.attended, inner, p->out, d_branch, w, own.d_inner, d->out, d->out_bias);
    Call call = pack(x, &kept);
    Qkv d_heads = split(x, own.d_wide);
    AttentionGradients gradients = {
        .d_out = heads_at(x, own.d_inner, inner, 0),
        .dq = d_heads.q, .dk = d_heads.k, .dv = d_heads.v,
    };
    kernels->attend_backward(&call, &gradients);
    if (x->rotation) rotate(x, own.d_wide, -1.0f);
    linear_backward(x, kept.normed, w, p->qkv, own.d_wide, qkv_width(x), own.d_normed, d->qkv,
                    d->qkv_bias);
    kernels->add_norm_backward(kept.stream, kept.moments, p->norm, own.d_stream, own.d_normed,
                               to->dx, to->d_branch, wanted(d->norm, &own),
                               wanted(d->norm_bias, &own), own.parts, r, w, x->is_centered, 0, 0,
                               x->seed, x->dropped, threads);
}

/* Blocks in a row, each of which reads what the one before it writes. */
void run_blocks(const Block *blocks, int64_t count) {
    for (int64_t i = 0; i < count; i++) run(blocks + i);
}

/* Their gradients, from the last block to the first. */
void run_blocks_backward(const Block *blocks, const Gradients *gradients, int64_t count) {
    for (int64_t i = count - 1; i >= 0; i--) run_backward(blocks + i, gradients + i);
}
