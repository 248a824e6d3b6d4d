/* The arguments of a matrix product in C (matrix_product.c).

   nn/kernels/matrix_product_cpu.py mirrors Product, field by field.

   Shapes: i rows and j columns of the result, r what is summed over. */

#ifndef HEED_MATRIX_PRODUCT_H
#define HEED_MATRIX_PRODUCT_H

#include <stdint.h>

/* a and b have any strides; rows of the result are contiguous. `bias` [j] may be null. */
typedef struct {
    const float *a, *b, *bias;
    float *out;
    int64_t a_i, a_r, b_r, b_j, out_i;
    int64_t rows, columns, inner;
    int64_t is_added; /* to what `out` holds, in place of the bias */
} Product;

#endif
