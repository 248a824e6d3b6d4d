/* Functions of float32 numbers, without branches and calls, so that loops over them are vectorized. */

#ifndef HEED_VECTOR_MATH_H
#define HEED_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* e^x to about 1e-7 of its value, for x from -87 to 88; elsewhere meaningless; of NaN, NaN.
   It is 2^n · e^r with |r| ≤ ln 2 / 2, and a polynomial in r that is fitted to 3e-9. Adding
   1.5 · 2^23 rounds to integers, and leaves n in the lowest bits. */
static inline float exponential_in_range(float x) {
    float n = x * 1.44269504f + 12582912.0f;
    uint32_t bits;
    memcpy(&bits, &n, sizeof bits);
    n = n - 12582912.0f;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float e = 1.38142e-3f;
    e = e * r + 8.36892e-3f;
    e = e * r + 4.166841e-2f;
    e = e * r + 0.16666519f;
    e = e * r + 0.49999993f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    bits = (bits + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return e * power;
}

/* e^x to about 1e-7 of its value. Below -87 it is e^-87, above 88 e^88; of NaN, NaN. */
static inline float exponential(float x) {
    float e = exponential_in_range(x);
    e = x < -87.0f ? 1.64581143e-38f : e;
    return x > 88.0f ? 1.65163625e38f : e;
}

/* e^x to about 1e-7 of its value, for x up to 88. Below -87 it is 0; of NaN, NaN. */
static inline float exponential_or_zero(float x) {
    float e = exponential_in_range(x);
    return x < -87.0f ? 0.0f : e;
}

#endif
