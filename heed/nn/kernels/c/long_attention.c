/* softmax(q kᵀ · scale + bias) v over long sequences, for training on a CPU in float32.

   FlashAttention (Dao et al. 2022) on tiles that fit a CPU's cache: the forward pass keeps the
   logarithm of each query's sum, and the backward pass computes weights again from it. Memory is
   linear in the length. Tiles that a mask hides are not computed. The outer loop is over keys: they,
   and in the backward pass their gradients, stay in the cache while all queries of the head pass.

   The bias is a slope of each head times |distance|; or a number for each distance between key and
   query, from -reach to reach, and beyond that the last one: one table for each head, or one for
   each query. Where the keys of a tile are at adjacent positions, their biases are adjacent in the
   table.

   One thread computes a whole head, and sums have a fixed order: a result depends neither on the
   number of threads nor on the other sequences of the batch.

   nn/kernels/long_attention_cpu.py mirrors the structs below, field by field.

   Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width. */

#include <stdlib.h>

#include "attention_tiles.h"

#define QUERIES 64 /* of a tile */
#define KEYS 128
/* A weight below e^LOWEST is 0: products with it could be denormal numbers, which are slow. */
#define LOWEST -60.0f

/* A bias by distance [b, h, n, 2 · reach + 1], or null: strides in numbers, 0 where shared. */
typedef struct {
    float *start;
    int64_t b, h, n;
} Table;

typedef struct {
    Heads q, k, v, out;
    float *log_sums; /* [b, h, n]: infinity where a query sees nothing */
    Table bias;
    const float *slopes;               /* [h]: the bias is -slope · |distance|; or null */
    PerToken q_positions, k_positions; /* int64 [b, n] and [b, m]; null where there is no bias */
    PerToken real;                     /* uint8 [b, m]: 0 where a key is padding */
    PerToken q_segments, k_segments;   /* int64 [b, n] and [b, m] */
    float scale;
    int32_t sequences, queries, keys, heads, kv_heads, width, reach;
    int32_t is_causal; /* the queries are the last of the keys */
    int32_t threads;
} Call;

typedef struct {
    Heads d_out, dq;
    Heads dk, dv; /* one for each query head: those of a group are still to be added up */
    Table d_bias; /* of zeros, or null where the bias does not learn */
} Gradients;

/* What one thread computes with: all queries of a head, and one tile of keys. Rows are padded to a
   multiple of LANES. */
typedef struct {
    float *queries, *d_out, *sums; /* [n, d]; sums of values, or of keys in the backward pass */
    float *best, *total; /* [n]: a query's largest score so far, and Σ e^(score - best) */
    float *means;        /* [n]: Σ weight · gradient of the weight */
    float *keys, *values, *dk, *dv;     /* [KEYS, d] */
    float *turned_keys, *turned_values; /* [d, KEYS] */
    float scores[QUERIES * KEYS], d_scores[QUERIES * KEYS];
    float hidden[KEYS]; /* below 0 where a key of the tile is padding */
} Scratch;

/* A tile: queries from `i`, keys from `j`, of one sequence. */
typedef struct {
    int64_t b;
    int i, rows, j, columns;
    int is_adjacent, is_padded; /* key positions rise by one; there is padding */
} Tile;

/* ------------------------------------------------------------------------------ scratch memory */

static Scratch *allocate(const Call *x) {
    Scratch *scratch = aligned_alloc(64, pad(sizeof(Scratch), 64));
    size_t wide = pad(x->width, LANES), queries = pad(x->queries, QUERIES);
    size_t count = 3 * (wide + 1) * queries + 6 * wide * KEYS;
    float *numbers = aligned_alloc(64, count * sizeof *numbers);
    if (!scratch || !numbers) {
        free(scratch);
        free(numbers);
        return NULL;
    }
    float **of_queries[] = {&scratch->queries, &scratch->d_out, &scratch->sums};
    float **of_each[] = {&scratch->best, &scratch->total, &scratch->means};
    float **of_keys[] = {&scratch->keys, &scratch->values,      &scratch->dk,
                         &scratch->dv,   &scratch->turned_keys, &scratch->turned_values};
    for (int i = 0; i < 3; i++, numbers += wide * queries)
        *of_queries[i] = numbers;
    for (int i = 0; i < 6; i++, numbers += wide * KEYS)
        *of_keys[i] = numbers;
    for (int i = 0; i < 3; i++, numbers += queries)
        *of_each[i] = numbers;
    return scratch;
}

static void release(Scratch *scratch) {
    if (scratch)
        free(scratch->queries); /* the first part: all were allocated at once */
    free(scratch);
}

/* ------------------------------------------------------------------------------ masks */

static inline const int64_t *of_sequence(PerToken x, int64_t b) {
    return (const int64_t *)x.start + b * x.b;
}

/* How many keys of a tile a query may see, for all that causality says. */
static inline int count_visible(const Call *x, int query, int j, int columns) {
    if (!x->is_causal) return columns;
    return most(0, least(columns, query + x->keys - x->queries + 1 - j));
}

/* Whether segments hide all keys of a tile from its queries. */
static int is_apart(const Call *x, Tile tile) {
    if (!x->q_segments.start) return 0;
    const int64_t *q = of_sequence(x->q_segments, tile.b) + tile.i;
    const int64_t *k = of_sequence(x->k_segments, tile.b) + tile.j;
    int64_t q_low = q[0], q_high = q[0], k_low = k[0], k_high = k[0];
    for (int r = 1; r < tile.rows; r++) {
        q_low = q[r] < q_low ? q[r] : q_low;
        q_high = q[r] > q_high ? q[r] : q_high;
    }
    for (int c = 1; c < tile.columns; c++) {
        k_low = k[c] < k_low ? k[c] : k_low;
        k_high = k[c] > k_high ? k[c] : k_high;
    }
    return q_high < k_low || k_high < q_low;
}

/* A tile of keys from `j`, which may be hidden from all queries: then it has no columns. */
static Tile open_tile(const Call *x, int64_t b, int i, int j, Scratch *scratch) {
    Tile tile = {.b = b, .i = i, .rows = least(QUERIES, x->queries - i), .j = j};
    tile.columns = count_visible(x, i + tile.rows - 1, j, least(KEYS, x->keys - j));
    if (tile.columns == 0 || is_apart(x, tile)) {
        tile.columns = 0;
        return tile;
    }
    if (x->real.start) {
        const uint8_t *real = (const uint8_t *)x->real.start + b * x->real.b + j;
        int seen = 0;
        for (int c = 0; c < tile.columns; c++) {
            scratch->hidden[c] = real[c] ? 0.0f : -1.0f;
            seen += real[c] != 0;
        }
        tile.is_padded = seen < tile.columns;
        if (seen == 0) tile.columns = 0;
    }
    if (x->k_positions.start) {
        const int64_t *k = of_sequence(x->k_positions, b) + j;
        tile.is_adjacent = 1;
        for (int c = 1; c < tile.columns; c++)
            tile.is_adjacent &= k[c] == k[0] + c;
    }
    return tile;
}

static void hide(const Call *x, Tile tile, int r, const float *hidden, float *row) {
    int visible = count_visible(x, tile.i + r, tile.j, tile.columns), c;
    if (tile.is_padded)
        for (c = 0; c < visible; c++)
            row[c] = hidden[c] < 0.0f ? -INFINITY : row[c];
    if (x->q_segments.start) {
        const int64_t *k = of_sequence(x->k_segments, tile.b) + tile.j;
        int64_t q = of_sequence(x->q_segments, tile.b)[tile.i + r];
        for (c = 0; c < visible; c++)
            row[c] = k[c] == q ? row[c] : -INFINITY;
    }
    for (c = visible; c < pad(tile.columns, LANES); c++)
        row[c] = -INFINITY;
}

/* ------------------------------------------------------------------------------ bias */

static void add_slope(const Call *x, Tile tile, int r, float slope, float *row) {
    const int64_t *k = of_sequence(x->k_positions, tile.b) + tile.j;
    int64_t q = of_sequence(x->q_positions, tile.b)[tile.i + r];
    if (!tile.is_adjacent) {
        for (int c = 0; c < tile.columns; c++)
            row[c] -= slope * fabsf((float)(k[c] - q));
        return;
    }
    float first = (float)(k[0] - q);
    for (int c = 0; c < tile.columns; c++)
        row[c] -= slope * fabsf(first + (float)c);
}

/* Where distances of a tile's keys lie in a table: `first` is the place of the first key. The keys
   before `low` have the table's first number, those from `high` on its last one. */
typedef struct {
    int64_t first;
    int low, high;
} Places;

static Places find_places(const Call *x, Tile tile, int64_t q, const int64_t *k) {
    int64_t first = k[0] - q + x->reach, size = 2 * (int64_t)x->reach + 1;
    int64_t low = first < 0 ? -first : 0, high = first > size ? 0 : size - first;
    low = low < tile.columns ? low : tile.columns;
    high = high < tile.columns ? high : tile.columns;
    return (Places){first, (int)low, (int)high};
}

static inline int64_t place_of(const Call *x, int64_t q, int64_t k) {
    int64_t place = k - q + x->reach, last = 2 * (int64_t)x->reach;
    return place < 0 ? 0 : place > last ? last : place;
}

static inline float *table_of(Table table, int64_t b, int64_t h, int64_t query) {
    return table.start + b * table.b + h * table.h + query * table.n;
}

static void add_bias(const Call *x, Tile tile, int r, const float *table, float *row) {
    const int64_t *k = of_sequence(x->k_positions, tile.b) + tile.j;
    int64_t q = of_sequence(x->q_positions, tile.b)[tile.i + r];
    if (!tile.is_adjacent) {
        for (int c = 0; c < tile.columns; c++)
            row[c] += table[place_of(x, q, k[c])];
        return;
    }
    Places at = find_places(x, tile, q, k);
    float before = table[0], after = table[2 * (int64_t)x->reach];
    for (int c = 0; c < at.low; c++)
        row[c] += before;
    for (int c = at.low; c < at.high; c++)
        row[c] += table[at.first + c];
    for (int c = at.high; c < tile.columns; c++)
        row[c] += after;
}

/* Add the gradients of a row's scores to that of the table. */
static void add_to_table(const Call *x, Tile tile, int r, const float *row, float *table) {
    const int64_t *k = of_sequence(x->k_positions, tile.b) + tile.j;
    int64_t q = of_sequence(x->q_positions, tile.b)[tile.i + r];
    if (!tile.is_adjacent) {
        for (int c = 0; c < tile.columns; c++)
            table[place_of(x, q, k[c])] += row[c];
        return;
    }
    Places at = find_places(x, tile, q, k);
    float before = 0.0f, after = 0.0f;
    for (int c = 0; c < at.low; c++)
        before += row[c];
    for (int c = at.low; c < at.high; c++)
        table[at.first + c] += row[c];
    for (int c = at.high; c < tile.columns; c++)
        after += row[c];
    table[0] += before;
    table[2 * (int64_t)x->reach] += after;
}

/* ------------------------------------------------------------------------------ scores */

/* Scores of a tile: -infinity where a key is hidden. */
static void score(const Call *x, Tile tile, int64_t h, Scratch *scratch) {
    ptrdiff_t wide = pad(x->width, LANES);
    Product product = {
        .out = scratch->scores, .out_row = KEYS, .columns = pad(tile.columns, LANES),
        .a = scratch->queries + tile.i * wide, .a_row = wide, .a_step = 1, .to = x->width,
        .b = scratch->turned_keys, .b_row = KEYS,
    };
    multiply(product, tile.rows);
    for (int r = 0; r < tile.rows; r++) {
        float *row = scratch->scores + r * KEYS;
        for (int c = 0; c < tile.columns; c += LANES)
            store(row + c, load(row + c) * x->scale);
        if (x->slopes) add_slope(x, tile, r, x->slopes[h], row);
        if (x->bias.start) add_bias(x, tile, r, table_of(x->bias, tile.b, h, tile.i + r), row);
        hide(x, tile, r, scratch->hidden, row);
    }
}

/* e^(score - best) in place, and 0 below e^LOWEST; returns their sum. */
static float exponentials(float *row, int columns, float best) {
    Vector sums = {0};
    for (int c = 0; c < columns; c += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            row[c + l] = row[c + l] - best < LOWEST ? 0.0f : exponential_in_range(row[c + l] - best);
        sums += load(row + c);
    }
    return add_lanes(sums);
}

static void multiply_row(float *row, float factor, int wide) {
    for (int c = 0; c < wide; c += LANES)
        store(row + c, load(row + c) * factor);
}

/* ------------------------------------------------------------------------------ forward */

static void attend_tile(const Call *x, Tile tile, int64_t h, Scratch *scratch) {
    int wide = pad(x->width, LANES);
    float *tile_sums = scratch->sums + (ptrdiff_t)tile.i * wide;
    score(x, tile, h, scratch);
    for (int r = 0; r < tile.rows; r++) {
        float *row = scratch->scores + r * KEYS, *best = scratch->best + tile.i + r;
        float *total = scratch->total + tile.i + r, before = *best;
        Vector largest = (Vector){0} - INFINITY;
        for (int c = 0; c < tile.columns; c += LANES)
            largest = larger(load(row + c), largest);
        float top = largest_lane(largest);
        *best = top > before ? top : before;
        float reference = *best == -INFINITY ? 0.0f : *best;
        float sum = exponentials(row, tile.columns, reference);
        float factor = before == *best ? 1.0f : exponential_or_zero(before - reference);
        *total = *total * factor + sum;
        if (factor != 1.0f) multiply_row(tile_sums + r * wide, factor, wide);
    }
    Product sums = {
        .out = tile_sums, .out_row = wide, .columns = wide, .is_added = 1,
        .a = scratch->scores, .a_row = KEYS, .a_step = 1, .to = tile.columns,
        .b = scratch->values, .b_row = wide,
    };
    multiply(sums, tile.rows);
}

static void attend_head(const Call *x, int64_t b, int64_t h, Scratch *scratch) {
    int n = x->queries, d = x->width, wide = pad(d, LANES);
    int64_t g = h / (x->heads / x->kv_heads);
    const float *keys = head_at(x->k, b, g), *values = head_at(x->v, b, g);
    copy_rows(scratch->queries, head_at(x->q, b, h), x->q.n, n, d);
    memset(scratch->sums, 0, (size_t)n * wide * sizeof(float));
    for (int i = 0; i < n; i++) {
        scratch->best[i] = -INFINITY;
        scratch->total[i] = 0.0f;
    }
    for (int j = 0; j < x->keys; j += KEYS) {
        int count = least(KEYS, x->keys - j);
        transpose(scratch->turned_keys, KEYS, keys + j * x->k.n, x->k.n, count, d);
        copy_rows(scratch->values, values + j * x->v.n, x->v.n, count, d);
        for (int i = 0; i < n; i += QUERIES) {
            Tile tile = open_tile(x, b, i, j, scratch);
            if (tile.columns) attend_tile(x, tile, h, scratch);
        }
    }
    float *log_sums = x->log_sums + (b * x->heads + h) * n;
    for (ptrdiff_t i = 0; i < n; i++) {
        float total = scratch->total[i];
        multiply_row(scratch->sums + i * wide, total == 0.0f ? 0.0f : 1.0f / total, wide);
        log_sums[i] = total == 0.0f ? INFINITY : scratch->best[i] + logf(total);
    }
    copy_back(head_at(x->out, b, h), x->out.n, scratch->sums, n, d);
}

/* ------------------------------------------------------------------------------ backward */

static void differentiate_tile(const Call *x, const Gradients *grads, Tile tile, int64_t h,
                               const float *log_sums, Scratch *scratch) {
    int wide = pad(x->width, LANES), padded = pad(tile.columns, LANES);
    ptrdiff_t query = (ptrdiff_t)tile.i * wide;
    score(x, tile, h, scratch);
    for (int r = 0; r < tile.rows; r++)
        exponentials(scratch->scores + r * KEYS, tile.columns, log_sums[tile.i + r]);
    Product dv = {
        .out = scratch->dv, .out_row = wide, .columns = wide, .is_added = 1,
        .a = scratch->scores, .a_row = 1, .a_step = KEYS, .to = tile.rows,
        .b = scratch->d_out + query, .b_row = wide,
    };
    multiply(dv, tile.columns);
    Product d_weights = {
        .out = scratch->d_scores, .out_row = KEYS, .columns = padded,
        .a = scratch->d_out + query, .a_row = wide, .a_step = 1, .to = x->width,
        .b = scratch->turned_values, .b_row = KEYS,
    };
    multiply(d_weights, tile.rows);
    for (int r = 0; r < tile.rows; r++) {
        float *row = scratch->d_scores + r * KEYS, *weights = scratch->scores + r * KEYS;
        float mean = scratch->means[tile.i + r];
        for (int c = 0; c < padded; c += LANES)
            store(row + c, load(weights + c) * (load(row + c) - mean));
        if (grads->d_bias.start)
            add_to_table(x, tile, r, row, table_of(grads->d_bias, tile.b, h, tile.i + r));
        multiply_row(row, x->scale, padded);
    }
    Product dq = {
        .out = scratch->sums + query, .out_row = wide, .columns = wide, .is_added = 1,
        .a = scratch->d_scores, .a_row = KEYS, .a_step = 1, .to = tile.columns,
        .b = scratch->keys, .b_row = wide,
    };
    multiply(dq, tile.rows);
    Product dk = dv;
    dk.out = scratch->dk;
    dk.a = scratch->d_scores;
    dk.b = scratch->queries + query;
    multiply(dk, tile.columns);
}

static void find_means(const Call *x, int64_t b, int64_t h, Scratch *scratch) {
    int d = x->width, wide = pad(d, LANES);
    for (ptrdiff_t i = 0; i < x->queries; i++) {
        const float *out = head_at(x->out, b, h) + i * x->out.n;
        Vector sums = {0};
        for (int c = 0; c < d; c += LANES)
            sums += load_part(out + c, d - c) * load(scratch->d_out + i * wide + c);
        scratch->means[i] = add_lanes(sums);
    }
}

static void differentiate_head(const Call *x, const Gradients *grads, int64_t b, int64_t h,
                               Scratch *scratch) {
    int n = x->queries, d = x->width, wide = pad(d, LANES);
    int64_t g = h / (x->heads / x->kv_heads);
    const float *keys = head_at(x->k, b, g), *values = head_at(x->v, b, g);
    const float *log_sums = x->log_sums + (b * x->heads + h) * n;
    copy_rows(scratch->queries, head_at(x->q, b, h), x->q.n, n, d);
    copy_rows(scratch->d_out, head_at(grads->d_out, b, h), grads->d_out.n, n, d);
    find_means(x, b, h, scratch);
    memset(scratch->sums, 0, (size_t)n * wide * sizeof(float));
    for (int j = 0; j < x->keys; j += KEYS) {
        int count = least(KEYS, x->keys - j);
        size_t size = (size_t)count * wide * sizeof(float);
        copy_rows(scratch->keys, keys + j * x->k.n, x->k.n, count, d);
        transpose(scratch->turned_keys, KEYS, keys + j * x->k.n, x->k.n, count, d);
        transpose(scratch->turned_values, KEYS, values + j * x->v.n, x->v.n, count, d);
        memset(scratch->dk, 0, size);
        memset(scratch->dv, 0, size);
        for (int i = 0; i < n; i += QUERIES) {
            Tile tile = open_tile(x, b, i, j, scratch);
            if (tile.columns) differentiate_tile(x, grads, tile, h, log_sums, scratch);
        }
        copy_back(head_at(grads->dk, b, h) + j * grads->dk.n, grads->dk.n, scratch->dk, count, d);
        copy_back(head_at(grads->dv, b, h) + j * grads->dv.n, grads->dv.n, scratch->dv, count, d);
    }
    copy_back(head_at(grads->dq, b, h), grads->dq.n, scratch->sums, n, d);
}

/* ------------------------------------------------------------------------------ calls */

/* The output, or the gradients, of all heads; returns 0 where there is no memory. */
static int32_t run(const Call *x, const Gradients *grads) {
    int32_t is_done = 1;
#pragma omp parallel num_threads(x->threads) if (x->threads > 1)
    {
        Scratch *scratch = allocate(x);
        if (!scratch) {
#pragma omp atomic write
            is_done = 0;
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (int64_t)x->sequences * x->heads; i++) {
            int64_t b = i / x->heads, h = i % x->heads;
            if (scratch && grads) differentiate_head(x, grads, b, h, scratch);
            if (scratch && !grads) attend_head(x, b, h, scratch);
        }
        release(scratch);
    }
    return is_done;
}

int32_t attend(const Call *x) { return run(x, NULL); }

int32_t differentiate(const Call *x, const Gradients *grads) { return run(x, grads); }
