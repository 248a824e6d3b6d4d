/* The step of AdamW and Adam over all tensors of a parameter group, in one pass over memory, and
   the sum of squares by which gradients are clipped before it.

   The Triton twin is nn/kernels/triton/adamw.py: the same formulas. nn/kernels/adamw_cpu.py mirrors
   Settings, field by field. Each number has its own update, which depends on no number of threads. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    double lr, divisor, beta1, beta2, eps, decay;
    int64_t is_decoupled;
} Settings;

/* The same for each number of a tensor, rounded to float32. */
typedef struct {
    float scale, kept, penalty, rate, spread, rate1, beta2, rate2, eps;
} Factors;

static inline float *at(int64_t address) { return (float *)(intptr_t)address; }

static Factors compute_factors(const Settings *x, float t) {
    /* In float64: 1 - βᵗ loses up to three digits at first steps. */
    double rate = x->lr / (1.0 - pow(x->beta1, t)), spread = 1.0 / sqrt(1.0 - pow(x->beta2, t));
    return (Factors){
        .scale = (float)(1.0 / x->divisor),
        .kept = (float)(x->is_decoupled ? 1.0 - x->lr * x->decay : 1.0),
        .penalty = (float)(x->is_decoupled ? 0.0 : x->decay),
        .rate = (float)rate,
        .spread = (float)spread,
        .rate1 = (float)(1.0 - x->beta1),
        .beta2 = (float)x->beta2,
        .rate2 = (float)(1.0 - x->beta2),
        .eps = (float)x->eps,
    };
}

static void update_numbers(float *restrict parameter, const float *restrict grad,
                           float *restrict mean, float *restrict square, ptrdiff_t n, Factors x) {
    for (ptrdiff_t i = 0; i < n; i++) {
        float p = parameter[i] * x.kept, g = grad[i] * x.scale + x.penalty * p;
        float m = mean[i] + x.rate1 * (g - mean[i]), v = x.beta2 * square[i] + x.rate2 * g * g;
        parameter[i] = p - x.rate * (m / (sqrtf(v) * x.spread + x.eps));
        mean[i] = m;
        square[i] = v;
    }
}

/* One step of n tensors. `table` [6, n] has their addresses (parameters, gradients, means, means of
   squares, steps), and their sizes. */
void update(const int64_t *table, int64_t n, const Settings *settings, int32_t threads) {
    const int64_t *parameter = table, *grad = table + n, *mean = table + 2 * n;
    const int64_t *square = table + 3 * n, *step = table + 4 * n, *size = table + 5 * n;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (ptrdiff_t part = 0; part < threads; part++)
        for (ptrdiff_t i = 0; i < n; i++) {
            Factors factors = compute_factors(settings, *at(step[i]) + 1.0f);
            ptrdiff_t first = size[i] * part / threads, last = size[i] * (part + 1) / threads;
            update_numbers(at(parameter[i]) + first, at(grad[i]) + first, at(mean[i]) + first,
                           at(square[i]) + first, last - first, factors);
        }
    for (ptrdiff_t i = 0; i < n; i++) *at(step[i]) += 1.0f;
}

#define CHUNK 16384 /* numbers that one thread sums */
#define RUN 2048    /* numbers that are summed in float32 */
#define SUMS 64     /* sums of a run, so that the CPU waits for none of them */

int64_t count_chunks(const int64_t *size, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += (size[i] + CHUNK - 1) / CHUNK;
    return count;
}

static double sum_squares_of(const float *x, ptrdiff_t n) {
    double total = 0.0;
    for (ptrdiff_t from = 0; from < n; from += RUN) {
        ptrdiff_t to = from + RUN < n ? from + RUN : n, i = from;
        float sums[SUMS] = {0};
        for (; i + SUMS <= to; i += SUMS)
            for (ptrdiff_t j = 0; j < SUMS; j++) sums[j] += x[i + j] * x[i + j];
        for (ptrdiff_t j = 0; i + j < to; j++) sums[j] += x[i + j] * x[i + j];
        for (ptrdiff_t j = 0; j < SUMS; j++) total += sums[j];
    }
    return total;
}

/* The sum of squares of n tensors, in the same order for any number of threads. `table` [2, n] has
   their addresses and sizes; `sums` holds a number for each chunk. */
double sum_squares(const int64_t *table, int64_t n, double *sums, int32_t threads) {
    const int64_t *address = table, *size = table + n;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (ptrdiff_t part = 0; part < threads; part++) {
        int64_t chunk = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t from = 0; from < size[i]; from += CHUNK, chunk++) {
                int64_t count = size[i] - from < CHUNK ? size[i] - from : CHUNK;
                if (chunk % threads == part)
                    sums[chunk] = sum_squares_of(at(address[i]) + from, count);
            }
    }
    double total = 0.0;
    const int64_t chunks = count_chunks(size, n);
    for (int64_t chunk = 0; chunk < chunks; chunk++) total += sums[chunk];
    return total;
}
