/* Heads of attention on a CPU, and products of tiles that stay in its registers.

   Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width. */

#ifndef HEED_ATTENTION_TILES_H
#define HEED_ATTENTION_TILES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "heads.h"
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

/* Numbers need not be aligned. */
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Order __attribute__((vector_size(4 * LANES)));

static inline int least(int a, int b) { return a < b ? a : b; }

static inline int most(int a, int b) { return a > b ? a : b; }

static inline int pad(int count, int multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

static inline float *head_at(Heads x, int64_t b, int64_t h) {
    return x.start + b * x.b + h * x.h;
}

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

/* Copy such rows back to those of a head, without the padding. */
static void copy_back(float *out, int64_t stride, const float *x, int rows, int width) {
    int padded = pad(width, LANES);
    for (int i = 0; i < rows; i++, out += stride, x += padded)
        memcpy(out, x, width * sizeof *out);
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

#endif
