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

   Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width. */

#include "attention_tiles.h"
#include "short_attention.h"

#define MAX_TOKENS 128
#define MAX_WIDTH 128

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
        copy_back(x.head, x.head_row, x.start, rows, width);
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

static void differentiate_group(const Call *x, const AttentionGradients *grads, int64_t group,
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

void differentiate(const Call *x, const AttentionGradients *grads) {
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
