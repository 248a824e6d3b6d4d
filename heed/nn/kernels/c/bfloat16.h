/* Numbers in bfloat16, the upper half of a float32's bits: widened, and rounded. */

#ifndef HEED_BFLOAT16_H
#define HEED_BFLOAT16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float widen(uint16_t narrow) {
    uint32_t bits = (uint32_t)narrow << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* To the nearest number, of two equally near to the even one; of NaN, NaN. */
static inline uint16_t narrow(float wide) {
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(wide != wide ? 0x7fc0 : rounded);
}

static inline void widen_row(const uint16_t *restrict from, float *restrict to, ptrdiff_t n) {
#pragma omp simd
    for (ptrdiff_t i = 0; i < n; i++) to[i] = widen(from[i]);
}

static inline void narrow_row(const float *restrict from, uint16_t *restrict to, ptrdiff_t n) {
#pragma omp simd
    for (ptrdiff_t i = 0; i < n; i++) to[i] = narrow(from[i]);
}

#endif
