/* Matrix products in float32 for AMD's CPUs with AVX-512, which MKL does not serve well.

   A tile of the result stays in registers while rows of b, weighted by numbers of a, are added to
   it. Each number of the result is one sum in a fixed order: it depends on no number of threads,
   and on no other row of a.

   Shapes: i rows and j columns of the result, r what is summed over. */

#include <stddef.h>

#include "matrix_product.h"

#define LANES 16         /* float32 numbers of a register */
#define ROWS 8           /* rows of a tile */
#define WIDE (2 * LANES) /* columns of a tile: with ROWS, 16 sums, two rows of b and one factor */
#define CHUNK 192        /* r that are summed before the next tile: b's rows stay in the cache */
#define COLUMNS 512      /* columns that are computed together, for the same reason */

#define INLINE static inline __attribute__((always_inline))

/* Numbers of b and of the result may lie at any multiple of 4 bytes. */
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

/* Rows of b from r = start, and their stride. */
typedef struct {
    const float *start;
    ptrdiff_t stride;
} Rows;

/* Add r from `start` to `end` to `rows` × (16 · `vectors`) numbers of the result from (i, j). */
INLINE void add_tile(const Product *x, Rows b, ptrdiff_t i, ptrdiff_t j, ptrdiff_t start,
                     ptrdiff_t end, int rows, int vectors) {
    const float *a = x->a + i * x->a_i + start * x->a_r;
    float *out = x->out + i * x->out_i + j;
    Vector sums[ROWS][2];
#pragma GCC unroll 8
    for (int k = 0; k < rows; k++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            sums[k][v] = (Vector){0};
            if (start || x->is_added) sums[k][v] = *(Vector *)(out + k * x->out_i + v * LANES);
            else if (x->bias) sums[k][v] = *(const Vector *)(x->bias + j + v * LANES);
        }
    for (ptrdiff_t r = start; r < end; r++, a += x->a_r, b.start += b.stride) {
        Vector first = *(const Vector *)b.start, second = first;
        if (vectors == 2) second = *(const Vector *)(b.start + LANES);
#pragma GCC unroll 8
        for (int k = 0; k < rows; k++) {
            float factor = a[k * x->a_i];
            sums[k][0] += factor * first;
            if (vectors == 2) sums[k][1] += factor * second;
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < rows; k++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            *(Vector *)(out + k * x->out_i + v * LANES) = sums[k][v];
}

/* The same for the columns from j to j_end. */
INLINE void add_rows(const Product *x, Rows b, ptrdiff_t i, ptrdiff_t j, ptrdiff_t j_end,
                     ptrdiff_t start, ptrdiff_t end, int rows) {
    for (; j + WIDE <= j_end; j += WIDE, b.start += WIDE) add_tile(x, b, i, j, start, end, rows, 2);
    if (j < j_end) add_tile(x, b, i, j, start, end, rows, 1);
}

/* Copy b's rows to `panel`, where their numbers are adjacent. */
static Rows pack(const Product *x, ptrdiff_t j, ptrdiff_t j_end, ptrdiff_t start, ptrdiff_t end,
                 float *panel) {
    for (ptrdiff_t k = j; k < j_end; k++)
        for (ptrdiff_t r = start; r < end; r++)
            panel[(r - start) * WIDE + k - j] = x->b[r * x->b_r + k * x->b_j];
    return (Rows){panel, WIDE};
}

/* out [i, j] = bias(j) or out(i, j) + Σ a(i, r) · b(r, j). The columns are a multiple of 16, r is one at least. */
void multiply(const Product *x, int32_t threads) {
    ptrdiff_t step = x->b_j == 1 ? COLUMNS : WIDE;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (ptrdiff_t part = 0; part < threads; part++) {
        float panel[CHUNK * WIDE];
        ptrdiff_t tiles = (x->rows + ROWS - 1) / ROWS;
        ptrdiff_t first = tiles * part / threads * ROWS, last = tiles * (part + 1) / threads * ROWS;
        if (last > x->rows) last = x->rows;
        for (ptrdiff_t j = 0; j < x->columns; j += step) {
            ptrdiff_t j_end = j + step < x->columns ? j + step : x->columns;
            for (ptrdiff_t start = 0; start < x->inner; start += CHUNK) {
                ptrdiff_t end = start + CHUNK < x->inner ? start + CHUNK : x->inner, i = first;
                Rows b = {x->b + start * x->b_r + j, x->b_r};
                if (x->b_j != 1) b = pack(x, j, j_end, start, end, panel);
                for (; i + ROWS <= last; i += ROWS) add_rows(x, b, i, j, j_end, start, end, ROWS);
                for (; i < last; i++) add_rows(x, b, i, j, j_end, start, end, 1);
            }
        }
    }
}
