/* Cross-entropy of a chunk of logits, which its gradient overwrites. Rows are computed one by one:
   a row stays in the CPU's cache from the first loop over it to the last.

   The plain twin is chunk_cross_entropy of nn/kernels/linear_cross_entropy.py: the same formulas. A
   row's results depend on no other row and on no number of threads, to the last bit.

   Shapes: r rows, v vocabulary. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "bfloat16.h"
#include "vector_math.h"

#define LANES 64 /* partial results, in four registers: the order of additions is in the source */

/* The largest number, NaN aside, and in *sum the sum of all. */
static float find_max(const float *x, ptrdiff_t v, float *sum) {
    float largest[LANES], sums[LANES], max = -INFINITY;
    for (ptrdiff_t j = 0; j < LANES; j++) largest[j] = -INFINITY, sums[j] = 0.0f;
    for (ptrdiff_t i = 0; i < v; i += LANES) {
        ptrdiff_t n = v - i < LANES ? v - i : LANES;
        for (ptrdiff_t j = 0; j < n; j++) {
            largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
            sums[j] += x[i + j];
        }
    }
    *sum = 0.0f;
    for (ptrdiff_t j = 0; j < LANES; j++) {
        max = largest[j] > max ? largest[j] : max;
        *sum += sums[j];
    }
    return max;
}

/* Whether the target is the first of the largest numbers. As in torch's argmax, NaN is larger than
   any other; there can be one only where the row's sum is NaN. */
static int is_prediction(const float *x, ptrdiff_t v, ptrdiff_t target, float max, float sum) {
    float score = x[target];
    int is_nan = score != score, found = 0;
    if (!is_nan && score != max) return 0;
    for (ptrdiff_t i = 0; i < target; i++) found |= is_nan ? x[i] != x[i] : x[i] == score;
    if (!is_nan && sum != sum)
        for (ptrdiff_t i = 0; i < v; i++) found |= x[i] != x[i];
    return !found;
}

/* Replace each number by exp(x - max), and return the sum of all. */
static float exponentiate(float *x, ptrdiff_t v, float max) {
    float sums[LANES] = {0}, sum = 0.0f;
    for (ptrdiff_t i = 0; i < v; i += LANES) {
        ptrdiff_t n = v - i < LANES ? v - i : LANES;
        for (ptrdiff_t j = 0; j < n; j++) {
            float e = exponential_or_zero(x[i + j] - max);
            x[i + j] = e;
            sums[j] += e;
        }
    }
    for (ptrdiff_t j = 0; j < LANES; j++) sum += sums[j];
    return sum;
}

/* One row's loss, whether its target is predicted, and in the place of its logits their gradient, if
   it is wanted: softmax - (1 - s) · onehot - s/v with label smoothing s. */
static void compute_row(float *x, ptrdiff_t v, ptrdiff_t target, float *loss, int32_t *correct,
                        float smoothing, int32_t is_wanted) {
    float sum, max = find_max(x, v, &sum), score = x[target];
    *correct = is_prediction(x, v, target, max, sum);
    float mass = exponentiate(x, v, max);
    *loss = (max - score) + logf(mass);
    if (smoothing > 0.0f) *loss -= smoothing * (sum / v - score);
    if (!is_wanted) return;
    float factor = 1.0f / mass, share = smoothing / v;
    for (ptrdiff_t i = 0; i < v; i++) x[i] = x[i] * factor - share;
    x[target] -= 1.0f - smoothing;
}

/* Losses [r], whether targets are predicted [r], and in the place of logits [r, v] their gradient, if
   it is wanted. Zeros where targets are `ignored`. Logits are float32, which are overwritten either
   way; or bfloat16, and `buffer` holds a row in float32 for each thread. Rows are `stride` apart.
   Returns how many other targets are not in the vocabulary; their rows are left alone. */
int64_t chunk_cross_entropy(void *logits, int64_t stride, const int64_t *targets, float *losses,
                            int32_t *correct, float *buffer, int64_t rows, int64_t v,
                            int64_t ignored, float smoothing, int32_t is_wanted, int32_t threads) {
    int64_t outside = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : outside)
    for (ptrdiff_t part = 0; part < threads; part++) {
        ptrdiff_t first = rows * part / threads, last = rows * (part + 1) / threads;
        float *wide = buffer ? buffer + part * v : NULL;
        for (ptrdiff_t row = first; row < last; row++) {
            uint16_t *narrow_logits = (uint16_t *)logits + row * stride;
            float *x = wide ? wide : (float *)logits + row * stride;
            if (targets[row] == ignored) {
                losses[row] = 0.0f;
                correct[row] = 0;
                if (is_wanted && wide) memset(narrow_logits, 0, v * sizeof *narrow_logits);
                if (is_wanted && !wide) memset(x, 0, v * sizeof *x);
                continue;
            }
            if (targets[row] < 0 || targets[row] >= v) {
                outside++;
                continue;
            }
            if (wide) widen_row(narrow_logits, wide, v);
            compute_row(x, v, targets[row], losses + row, correct + row, smoothing, is_wanted);
            if (wide && is_wanted) narrow_row(wide, narrow_logits, v);
        }
    }
    return outside;
}
