/* softmax(q kᵀ · scale + bias) v over short sequences, for training on a CPU in float32.

   The forward pass stores the weights. With them the backward pass needs no bias and no segments,
   and computes neither scores nor exponentials again. For short sequences that is faster, and the
   weights are about as many numbers as the queries.

   Every product is sums of rows of one matrix, weighted by numbers of another. Its inner loop runs
   over adjacent numbers, so keys (forward) and values (backward) are transposed first. Heads are
   copied to adjacent rows: as views of one linear layer's output their rows are so far apart that
   they displace each other from the cache.

   One thread computes all heads of a group, and sums have a fixed order: a result depends neither
   on the number of threads nor on the other sequences of the batch.

   nn/kernels/short_attention_cpu.py mirrors the structs below, field by field.

   Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vector_math.h"

#if defined(__AVX512F__)
#define LANES 16 /* float32 numbers of a register */
#define ROWS 8   /* rows of a product that are computed together; they divide LANES */
#define PART 2   /* registers of a row that are computed together: with ROWS, 16 of 32 */
#elif defined(__AVX__)
#define LANES 8
#define ROWS 4
#define PART 2
#else
#define LANES 4
#define ROWS 4
#define PART 4
#endif
#define MULTIPLE 16 /* rows of weights and of the bias are padded to a multiple of it */
#define MAX_TOKENS 128
#define MAX_WIDTH 128

/* Numbers need not be aligned. */
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Order __attribute__((vector_size(4 * LANES)));

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
} Gradients;

/* What one thread computes with: matrices with rows padded to a multiple of LANES. */
typedef struct {
    float transposed[MAX_WIDTH * MAX_TOKENS]; /* keys or values [d, m] */
    float keys[MAX_TOKENS * MAX_WIDTH];       /* [m, d], as the next three */
    float values[MAX_TOKENS * MAX_WIDTH];
    float queries[MAX_TOKENS * MAX_WIDTH];
    float d_out[MAX_TOKENS * MAX_WIDTH];
    float sums[MAX_TOKENS * MAX_WIDTH], dk[MAX_TOKENS * MAX_WIDTH], dv[MAX_TOKENS * MAX_WIDTH];
    float d_scores[MAX_TOKENS * MAX_TOKENS]; /* [n, m] */
    float hidden[MAX_TOKENS * MAX_TOKENS];   /* [n, m], or one row: below 0 where a key is hidden */
} Scratch;

static _Thread_local Scratch thread_scratch __attribute__((aligned(64)));
static const float ZEROS[MAX_TOKENS];

static inline int least(int a, int b) { return a < b ? a : b; }

static inline int most(int a, int b) { return a > b ? a : b; }

static inline int pad(int count, int multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

static inline float *head_at(Heads x, int64_t b, int64_t h) {
    return x.start + b * x.b + h * x.h;
}

/* ------------------------------------------------------------------------------ matrices */

static inline Vector load(const float *x) { return *(const Vector *)x; }

static inline void store(float *x, Vector numbers) { *(Vector *)x = numbers; }

/* The first numbers of a vector, and zeros. */
static inline Vector load_part(const float *x, int count) {
    Vector numbers = {0};
    memcpy(&numbers, x, least(count, LANES) * sizeof *x);
    return numbers;
}

/* Copy rows of a head to adjacent rows, padded with zeros to a multiple of LANES. */
static void copy_rows(float *out, const float *x, int64_t stride, int rows, int width) {
    int whole = width / LANES * LANES, padded = pad(width, LANES);
    for (int i = 0; i < rows; i++, out += padded, x += stride) {
        for (int j = 0; j < whole; j += LANES)
            store(out + j, load(x + j));
        if (whole < width)
            store(out + whole, load_part(x + whole, width - whole));
    }
}

/* Where a product writes rows of a head: to the head itself, or to scratch memory first where
   registers are not whole. */
typedef struct {
    float *start;
    int64_t row;
    float *head;
    int64_t head_row;
} Target;

static Target open_target(float *head, int64_t head_row, int width, float *scratch) {
    if (width % LANES)
        return (Target){scratch, pad(width, LANES), head, head_row};
    return (Target){head, head_row, head, head_row};
}

static void close_target(Target x, int rows, int width) {
    if (x.start != x.head)
        for (int i = 0; i < rows; i++)
            memcpy(x.head + i * x.head_row, x.start + i * x.row, width * sizeof *x.head);
}

/* Orders of two vectors' lanes: both in turn, from the first or the second halves; and one vector
   with numbers exchanged that are `k` lanes apart, a power of two. */
#if LANES == 16
#define EXCHANGED(k) \
    {k, 1 ^ k, 2 ^ k, 3 ^ k, 4 ^ k, 5 ^ k, 6 ^ k, 7 ^ k, 8 ^ k, 9 ^ k, 10 ^ k, 11 ^ k, 12 ^ k, \
     13 ^ k, 14 ^ k, 15 ^ k}
#define LOW {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}
#define HIGH {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}
#elif LANES == 8
#define EXCHANGED(k) {k, 1 ^ k, 2 ^ k, 3 ^ k, 4 ^ k, 5 ^ k, 6 ^ k, 7 ^ k}
#define LOW {0, 8, 1, 9, 2, 10, 3, 11}
#define HIGH {4, 12, 5, 13, 6, 14, 7, 15}
#else
#define EXCHANGED(k) {k, 1 ^ k, 2 ^ k, 3 ^ k}
#define LOW {0, 4, 1, 5}
#define HIGH {2, 6, 3, 7}
#endif

static inline Vector reorder(Vector a, Vector b, Order order) {
#ifdef __clang__
    Vector mixed;
    for (int i = 0; i < LANES; i++)
        mixed[i] = order[i] < LANES ? a[order[i]] : b[order[i] - LANES];
    return mixed;
#else
    return __builtin_shuffle(a, b, order);
#endif
}

/* Transpose a block. Each pass moves the highest bit of a number's row to its column's lowest. */
static inline __attribute__((always_inline)) void transpose_block(Vector block[LANES]) {
    const Order low = LOW, high = HIGH;
#pragma GCC unroll 4
    for (int size = 1; size < LANES; size *= 2) {
        Vector mixed[LANES];
#pragma GCC unroll 8
        for (int r = 0; r < LANES / 2; r++) {
            mixed[2 * r] = reorder(block[r], block[r + LANES / 2], low);
            mixed[2 * r + 1] = reorder(block[r], block[r + LANES / 2], high);
        }
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            block[r] = mixed[r];
    }
}

/* Transpose rows of a head, [rows, width] to [width, row]: rows padded with zeros to LANES. */
static void transpose(float *out, int row, const float *x, int64_t stride, int rows, int width) {
    for (int i = 0; i < rows; i += LANES) {
        for (int j = 0; j < width; j += LANES) {
            Vector block[LANES];
            const float *corner = x + i * stride + j;
            float *to = out + (ptrdiff_t)j * row + i;
            if (i + LANES <= rows && j + LANES <= width) {
#pragma GCC unroll 16
                for (int r = 0; r < LANES; r++)
                    block[r] = load(corner + r * stride);
                transpose_block(block);
#pragma GCC unroll 16
                for (int r = 0; r < LANES; r++)
                    store(to + (ptrdiff_t)r * row, block[r]);
            } else {
                for (int r = 0; r < LANES; r++)
                    block[r] = (Vector){0};
                for (int r = 0; r < least(LANES, rows - i); r++)
                    block[r] = load_part(corner + r * stride, width - j);
                transpose_block(block);
                for (int r = 0; r < least(LANES, width - j); r++)
                    store(to + (ptrdiff_t)r * row, block[r]);
            }
        }
    }
}

/* The larger numbers of two vectors; `b` where one is NaN. */
static inline Vector larger(Vector a, Vector b) {
    Order is_a = a > b;
    return (Vector)(((Order)a & is_a) | ((Order)b & ~is_a));
}

static inline float add_lanes(Vector x) {
    const Order by_8 = EXCHANGED((8 % LANES)), by_4 = EXCHANGED((4 % LANES));
    const Order by_2 = EXCHANGED(2), by_1 = EXCHANGED(1);
    if (LANES > 8)
        x += reorder(x, x, by_8);
    if (LANES > 4)
        x += reorder(x, x, by_4);
    x += reorder(x, x, by_2);
    x += reorder(x, x, by_1);
    return x[0];
}

static inline float largest_lane(Vector x) {
    const Order by_8 = EXCHANGED((8 % LANES)), by_4 = EXCHANGED((4 % LANES));
    const Order by_2 = EXCHANGED(2), by_1 = EXCHANGED(1);
    x = larger(x, reorder(x, x, by_8));
    x = larger(x, reorder(x, x, by_4));
    x = larger(x, reorder(x, x, by_2));
    x = larger(x, reorder(x, x, by_1));
    return x[0];
}

/* One product: out[i, j] = Σ a[i, t] · b[t, j] over `from` ≤ t < `to`, added to `out` if asked.
   Rows of `out` and `b` have room for whole registers. */
typedef struct {
    float *out;
    int64_t out_row;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_row;
    int columns, from, to, is_added;
} Product;

static inline __attribute__((always_inline)) void multiply_tile(const Product *x, int i, int j,
                                                                const int rows, const int vectors) {
    Vector sums[ROWS][PART];
    const int64_t a_row = x->a_row, a_step = x->a_step, b_row = x->b_row, out_row = x->out_row;
    const float *a = x->a + i * a_row, *b = x->b + j;
    float *out = x->out + i * out_row + j;
    const int to = x->to;
    if (x->is_added) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] = load(out + r * out_row + v * LANES);
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] = (Vector){0};
    }
    for (int64_t t = x->from; t < to; t++) {
        Vector row[PART];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            row[v] = load(b + t * b_row + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float weight = a[r * a_row + t * a_step];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] += weight * row[v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            store(out + r * out_row + v * LANES, sums[r][v]);
}

static inline __attribute__((always_inline)) void multiply_rows(const Product *x, int i,
                                                                const int rows) {
    int j = 0;
    for (; j + (PART - 1) * LANES < x->columns; j += PART * LANES)
        multiply_tile(x, i, j, rows, PART);
    for (; j < x->columns; j += LANES)
        multiply_tile(x, i, j, rows, 1);
}

static __attribute__((noinline)) void multiply(Product x, int rows) {
    int i = 0;
    for (; i + ROWS <= rows; i += ROWS)
        multiply_rows(&x, i, ROWS);
    if (ROWS > 4 && i + 4 <= rows) {
        multiply_rows(&x, i, 4);
        i += 4;
    }
    if (i + 2 <= rows) {
        multiply_rows(&x, i, 2);
        i += 2;
    }
    if (i < rows)
        multiply_rows(&x, i, 1);
}

/* ------------------------------------------------------------------------------ masks */

/* The keys up to the last that is not padding. */
static int count_keys(const Call *x, int64_t b) {
    int count = x->keys;
    if (x->real.start) {
        const uint8_t *real = (const uint8_t *)x->real.start + b * x->real.b;
        while (count > 0 && !real[count - 1])
            count--;
    }
    return count;
}

/* How many keys a query may see at most: all, or those up to itself. */
static inline int count_visible(const Call *x, int query, int keys) {
    return x->is_causal ? most(0, least(keys, query + 1 + x->keys - x->queries)) : keys;
}

/* Where padding and segments hide keys; returns the stride of queries, 0 if one row serves all. */
static int find_hidden(const Call *x, int64_t b, float *hidden) {
    int keys = x->keys, row = pad(keys, MULTIPLE);
    memset(hidden, 0, row * sizeof *hidden);
    if (x->real.start) {
        const uint8_t *real = (const uint8_t *)x->real.start + b * x->real.b;
        for (int j = 0; j < keys; j++)
            hidden[j] = real[j] ? 0.0f : -1.0f;
    }
    if (!x->q_segments.start)
        return 0;
    const int64_t *of_queries = (const int64_t *)x->q_segments.start + b * x->q_segments.b;
    const int64_t *of_keys = (const int64_t *)x->k_segments.start + b * x->k_segments.b;
    for (int i = x->queries - 1; i >= 0; i--) /* the first row is read until the end */
        for (int j = 0; j < keys; j++)
            hidden[i * row + j] = of_keys[j] == of_queries[i] ? hidden[j] : -1.0f;
    return row;
}

/* ------------------------------------------------------------------------------ forward */

/* Scores of up to ROWS queries, from `query` on, to weights, in place: zeros for hidden keys, and
   nothing for registers of keys that are hidden from all these queries. Each step is taken for all
   queries before the next: they are independent, and the CPU need not wait for results. */
static void softmax(const Call *x, float *tile, int query, int rows, int keys, const float *bias,
                    const float *hidden, int hidden_row) {
    int row = pad(x->keys, MULTIPLE), visible = count_visible(x, query + rows - 1, keys), j;
    float scale = x->scale, best[ROWS], inverse[ROWS];
    for (int r = 0; r < rows; r++) {
        float *scores = tile + r * row;
        const float *added = bias ? bias + (query + r) * x->bias_n : ZEROS;
        const float *hides = hidden + (query + r) * hidden_row;
        Vector so_far = (Vector){0} - INFINITY;
        int own = count_visible(x, query + r, keys);
        for (j = 0; j < visible; j += LANES) {
#pragma omp simd
            for (int l = 0; l < LANES; l++) {
                float score = scores[j + l] * scale + added[j + l];
                scores[j + l] = (hides[j + l] < 0.0f) | (l >= own - j) ? -INFINITY : score;
            }
            so_far = larger(load(scores + j), so_far);
        }
        best[r] = largest_lane(so_far);
    }
    for (int r = 0; r < rows; r++) {
        float *scores = tile + r * row, first = best[r];
        Vector sums = {0};
        for (j = 0; j < visible; j += LANES) {
#pragma omp simd
            for (int l = 0; l < LANES; l++) {
                float score = scores[j + l], e = exponential_or_zero(score - first);
                scores[j + l] = score == -INFINITY ? 0.0f : e;
            }
            sums += load(scores + j);
        }
        float sum = add_lanes(sums);
        inverse[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    for (int r = 0; r < rows; r++) {
        float *weights = tile + r * row;
        for (j = 0; j < visible; j += LANES)
            store(weights + j, load(weights + j) * inverse[r]);
    }
}

static void attend_group(const Call *x, Heads out, int64_t group, Scratch *scratch) {
    int64_t b = group / x->kv_heads, g = group % x->kv_heads;
    int n = x->queries, d = x->width, share = x->heads / x->kv_heads;
    int row = pad(x->keys, MULTIPLE), wide = pad(d, LANES), keys = count_keys(x, b);
    transpose(scratch->transposed, row, head_at(x->k, b, g), x->k.n, keys, d);
    copy_rows(scratch->values, head_at(x->v, b, g), x->v.n, keys, d);
    int hidden_row = find_hidden(x, b, scratch->hidden);
    for (int64_t h = g * share; h < (g + 1) * share; h++) {
        const float *q = head_at(x->q, b, h), *bias = x->bias ? x->bias + h * x->bias_h : NULL;
        float *weights = x->weights + (b * x->heads + h) * n * row;
        Target to = open_target(head_at(out, b, h), out.n, d, scratch->sums);
        for (int i = 0; i < n; i += ROWS) {
            int rows = least(ROWS, n - i), visible = count_visible(x, i + rows - 1, keys);
            float *tile = weights + (ptrdiff_t)i * row;
            Product scores = {
                .out = tile, .out_row = row, .columns = pad(visible, LANES),
                .a = q + i * x->q.n, .a_row = x->q.n, .a_step = 1, .to = d,
                .b = scratch->transposed, .b_row = row,
            };
            multiply(scores, rows);
            softmax(x, tile, i, rows, keys, bias, scratch->hidden, hidden_row);
            Product sums = {
                .out = to.start + i * to.row, .out_row = to.row, .columns = d,
                .a = tile, .a_row = row, .a_step = 1, .to = visible,
                .b = scratch->values, .b_row = wide,
            };
            multiply(sums, rows);
        }
        close_target(to, n, d);
    }
}

void attend(const Call *x, const Heads *out) {
#pragma omp parallel for num_threads(x->threads) schedule(static) if (x->threads > 1)
    for (int64_t i = 0; i < (int64_t)x->sequences * x->kv_heads; i++)
        attend_group(x, *out, i, &thread_scratch);
}

/* ------------------------------------------------------------------------------ backward */

/* The gradient of weights to that of scores times `scale`, in place; unscaled to `raw` if any. */
static void differentiate_softmax(float *row, const float *weights, int visible, int size,
                                  float scale, float *raw) {
    Vector sums = {0};
    for (int j = 0; j < visible; j += LANES)
        sums += load(weights + j) * load(row + j);
    float mean = add_lanes(sums);
    int j = 0;
    for (; j < visible; j += LANES) {
        Vector d_score = load(weights + j) * (load(row + j) - mean);
        store(row + j, d_score * scale);
        if (raw)
            store(raw + j, d_score);
    }
    for (; raw && j < size; j += LANES)
        store(raw + j, (Vector){0});
}

static void differentiate_group(const Call *x, const Gradients *grads, int64_t group,
                                Scratch *scratch) {
    int64_t b = group / x->kv_heads, g = group % x->kv_heads;
    int n = x->queries, d = x->width, share = x->heads / x->kv_heads, before = x->keys - n;
    int row = pad(x->keys, MULTIPLE), wide = pad(d, LANES), keys = count_keys(x, b);
    transpose(scratch->transposed, row, head_at(x->v, b, g), x->v.n, keys, d);
    copy_rows(scratch->keys, head_at(x->k, b, g), x->k.n, keys, d);
    Target dk_to = open_target(head_at(grads->dk, b, g), grads->dk.n, d, scratch->dk);
    Target dv_to = open_target(head_at(grads->dv, b, g), grads->dv.n, d, scratch->dv);
    for (int64_t h = g * share; h < (g + 1) * share; h++) {
        Target dq_to = open_target(head_at(grads->dq, b, h), grads->dq.n, d, scratch->sums);
        int64_t start = (b * x->heads + h) * n * row;
        const float *weights = x->weights + start;
        copy_rows(scratch->queries, head_at(x->q, b, h), x->q.n, n, d);
        copy_rows(scratch->d_out, head_at(grads->d_out, b, h), grads->d_out.n, n, d);
        for (int i = 0; i < n; i += ROWS) {
            int rows = least(ROWS, n - i), visible = count_visible(x, i + rows - 1, keys);
            float *tile = scratch->d_scores + (ptrdiff_t)i * row;
            Product d_weights = {
                .out = tile, .out_row = row, .columns = pad(visible, LANES),
                .a = scratch->d_out + i * wide, .a_row = wide, .a_step = 1, .to = d,
                .b = scratch->transposed, .b_row = row,
            };
            multiply(d_weights, rows);
            for (int r = 0; r < rows; r++) {
                ptrdiff_t at = (ptrdiff_t)(i + r) * row;
                float *raw = grads->d_scores ? grads->d_scores + start + at : NULL;
                differentiate_softmax(tile + r * row, weights + at, visible, row, x->scale, raw);
            }
            Product dq = {
                .out = dq_to.start + i * dq_to.row, .out_row = dq_to.row,
                .a = tile, .a_row = row, .a_step = 1, .to = visible,
                .b = scratch->keys, .b_row = wide, .columns = d,
            };
            multiply(dq, rows);
        }
        close_target(dq_to, n, d);
        for (int j = 0; j < x->keys; j += ROWS) {
            Product dv = {
                .out = dv_to.start + j * dv_to.row, .out_row = dv_to.row,
                .a = weights + j, .a_row = 1, .a_step = row,
                .b = scratch->d_out, .b_row = wide, .columns = d,
                .from = x->is_causal ? most(0, j - before) : 0, .to = j < keys ? n : 0,
                .is_added = h > g * share,
            };
            Product dk = dv;
            dk.out = dk_to.start + j * dk_to.row;
            dk.out_row = dk_to.row;
            dk.a = scratch->d_scores + j;
            dk.b = scratch->queries;
            multiply(dv, least(ROWS, x->keys - j));
            multiply(dk, least(ROWS, x->keys - j));
        }
    }
    close_target(dk_to, x->keys, d);
    close_target(dv_to, x->keys, d);
}

void differentiate(const Call *x, const Gradients *grads) {
#pragma omp parallel for num_threads(x->threads) schedule(static) if (x->threads > 1)
    for (int64_t i = 0; i < (int64_t)x->sequences * x->kv_heads; i++)
        differentiate_group(x, grads, i, &thread_scratch);
}

/* Add up [b, size] over the batch, one sequence after the other. */
void sum_batch(float *out, const float *x, int64_t b, int64_t size, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t start = 0; start < size; start += 1024) {
        int64_t end = start + 1024 < size ? start + 1024 : size;
        memcpy(out + start, x + start, (end - start) * sizeof *out);
        for (int64_t i = 1; i < b; i++)
#pragma omp simd
            for (int64_t j = start; j < end; j++)
                out[j] += x[i * size + j];
    }
}
