/* Functions of float32 numbers, without branches and calls, so that loops over them are vectorized. */

#ifndef HEED_VECTOR_MATH_H
#define HEED_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* e^x of x ≤ 88 to about 1e-7 of its value: 2^n · e^r with |r| ≤ ln 2 / 2 and a Taylor polynomial in
   r. Below -87 it is e^-87; of NaN, NaN. */
static inline float exponential_to_88(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float e = 1.0f / 5040;
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return e * power;
}

/* e^x of any x: above 88 it is e^88. */
static inline float exponential(float x) { return exponential_to_88(x > 88.0f ? 88.0f : x); }

#endif
