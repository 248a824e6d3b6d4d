/* Blocks of a Transformer with int8 weights, for CPUs with AVX-512 VNNI.

   One call of `decode` is one decoding step, one call of `encode` encodes all sources of a batch.
   The plain twin of `multiply` is `_linear` of nn/kernels/quantized_linear.py, that of `decode` and
   `encode` is Stack.run_blocks of nn/stack.py: the same formulas, without a pass over memory and a
   call of Python for each operation. A result depends on no other input of the batch, to the last
   bit.

   nn/kernels/int8_blocks.py mirrors the structs below, field by field.

   Shapes: b inputs, k hypotheses per input, r = b·k rows, c key-value cells, m source tokens,
   h query heads, g key and value heads, d head width, w numbers in, f numbers out. */

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 16   /* float32 numbers of a register */
#define PANEL 64   /* outputs that are computed together, in four registers a row */
#define ROWS 6     /* rows that are computed together: with PANEL, 24 of 32 registers */
#define LEVELS 127 /* the largest integer of an input */
#define SHIFT 128  /* added to inputs: the instruction multiplies unsigned by signed numbers */
#define SMALLEST 1e-30f

/* A linear layer. `packed` has, for each panel of 64 outputs, for each four inputs, 64 × 4 weights.
   The other arrays are padded to whole panels; `start` is -128 times an output's sum of weights. */
typedef struct {
    const int8_t *packed;
    const int32_t *start;
    const float *scales;
    const float *bias;
    int32_t w, f;
} Linear;

/* LayerNorm, or RMSNorm where `is_centered` is 0. No weight at all means no norm. */
typedef struct {
    const float *weight;
    const float *bias;
    float eps;
    int32_t is_centered;
} Norm;

typedef struct {
    Linear into; /* to q, k and v; in cross-attention to q */
    Linear out;
    Norm norm;
    int32_t heads, kv_heads;
    float scale;
} Attention;

typedef struct {
    Attention self, cross;
    Linear up, down;
    Norm feed_forward_norm;
} Block;

enum { RELU, GELU, GELU_TANH, SILU };

typedef struct {
    const Block *blocks;
    Norm norm;
    int32_t layers, width, head_width;
    int32_t widest; /* the most numbers in or out of a linear layer */
    int32_t activation, is_gated, is_pre_norm, has_cross;
} Stack;

/* A position's bias [b, h, n, m] of one layer, or null. Strides are 0 where one entry serves all. */
typedef struct {
    const float *start;
    int64_t b, h, n;
} Bias;

/* The tensors of one layer: keys and values [b, g, c or m, d], and the bias. */
typedef struct {
    float *keys, *values;
    const float *source_keys, *source_values;
    Bias bias;
} LayerState;

typedef struct {
    const LayerState *layers;
    float *x;                     /* [r, w]: embedded tokens, then the output */
    const uint8_t *visible;       /* [b, k, c] */
    const uint8_t *done;          /* [b]: such inputs attend to nothing */
    const int64_t *next_cells;    /* [k] */
    const int64_t *source_ends;   /* [b] */
    const float *cosines, *sines; /* [b or 1, d/2] of RoPE, or null */
    void *scratch;
    int64_t rotation_b; /* stride of these tables, 0 where one row serves all */
    int32_t inputs, beams, cells, source_cells;
} Step;

/* The sources of a batch, without padding. */
typedef struct {
    float *x;                     /* [all tokens, w]: embedded tokens, then the output */
    const int64_t *starts;        /* [b + 1]: the first token of each source, and the end */
    const float *cosines, *sines; /* [n, d/2] of RoPE by position, or null */
    const Bias *biases;           /* one for each layer */
    void *scratch;
    int32_t inputs, longest;
} Sources;

/* ------------------------------------------------------------------------------ vectors */

static inline __mmask16 lanes_left(ptrdiff_t count) {
    return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

/* e^x to about 1e-7 of its value: 2^n · e^r with |r| ≤ ln 2 / 2 and a Taylor polynomial in r. */
static inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x); /* of NaN, NaN */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 e = _mm512_set1_ps(1.0f / 720);
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 120));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 24));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 6));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(0.5f));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(e, n);
}

static inline __m512 sigmoid(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one,
                         _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* erf by formula 7.1.26 of Abramowitz and Stegun, to 1.5e-7. */
static inline __m512 error_function(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f), size = _mm512_abs_ps(x);
    __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(_mm512_set1_ps(0.3275911f), size, one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    __m512 square = _mm512_mul_ps(size, size);
    __m512 e = exponential(_mm512_sub_ps(_mm512_setzero_ps(), square));
    __m512 y = _mm512_fnmadd_ps(_mm512_mul_ps(p, t), e, one);
    return _mm512_mask_sub_ps(y, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ),
                              _mm512_setzero_ps(), y);
}

static inline __m512 activated(__m512 x, int32_t kind) {
    __m512 half = _mm512_mul_ps(_mm512_set1_ps(0.5f), x), one = _mm512_set1_ps(1.0f);
    switch (kind) {
        case RELU: return _mm512_max_ps(_mm512_setzero_ps(), x); /* of NaN, NaN */
        case SILU: return _mm512_mul_ps(x, sigmoid(x));
        case GELU:
            return _mm512_mul_ps(
                half,
                _mm512_add_ps(one, error_function(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)))));
        default: { /* ½ x (1 + tanh z) = x · sigmoid(2 z) */
            __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
            __m512 z = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, x);
            return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(z, _mm512_set1_ps(1.59576912f))));
        }
    }
}

/* ------------------------------------------------------------------------- linear layers */

static inline ptrdiff_t padded(ptrdiff_t size, ptrdiff_t unit) {
    return (size + unit - 1) / unit * unit;
}

/* Reorder integers [f, w] into `packed`, and sum them for `start`. */
void pack(const int8_t *integers, int32_t f, int32_t w, int8_t *packed, int32_t *start) {
    ptrdiff_t inputs = padded(w, 4), outputs = padded(f, PANEL);
    for (ptrdiff_t o = 0; o < outputs; o++) {
        int8_t *panel = packed + o / PANEL * PANEL * inputs + o % PANEL * 4;
        int32_t sum = 0;
        for (ptrdiff_t i = 0; i < inputs; i++) {
            int8_t weight = o < f && i < w ? integers[o * w + i] : 0;
            panel[i / 4 * PANEL * 4 + i % 4] = weight;
            sum += weight;
        }
        start[o] = -SHIFT * sum;
    }
}

/* A row as integers from 1 to 255, and its largest number; NaN if a number of it is. */
static float quantize_row(const float *x, ptrdiff_t w, uint8_t *out) {
    __m512 largest = _mm512_set1_ps(SMALLEST);
    __mmask16 strange = 0;
    for (ptrdiff_t i = 0; i < w; i += LANES) {
        __m512 v = _mm512_maskz_loadu_ps(lanes_left(w - i), x + i);
        strange |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        largest = _mm512_max_ps(largest, _mm512_abs_ps(v));
    }
    float most = strange ? __builtin_nanf("") : _mm512_reduce_max_ps(largest);
    /* torch divides by a tensor so: with other roundings, numbers on the edge would differ. */
    __m512 scale = _mm512_set1_ps(LEVELS * (1.0f / most));
    for (ptrdiff_t i = 0; i < w; i += LANES) {
        __mmask16 lanes = lanes_left(w - i);
        __m512i integers =
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), scale));
        integers = _mm512_add_epi32(integers, _mm512_set1_epi32(SHIFT));
        _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8(integers));
    }
    return most;
}

/* Some rows times one panel of outputs; with `adds`, added to what is there. */
static inline __attribute__((always_inline)) void multiply_block(
    const int rows, const Linear *layer, ptrdiff_t panel, const uint8_t *x, ptrdiff_t x_stride,
    const float *largest, float *out, int adds) {
    const ptrdiff_t quads = padded(layer->w, 4) / 4, first = panel * PANEL;
    const int8_t *weights = layer->packed + first * quads * 4;
    __m512i sums[ROWS][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            sums[i][j] = _mm512_loadu_si512(layer->start + first + j * LANES);
    for (ptrdiff_t q = 0; q < quads; q++) {
        __m512i panel_weights[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            panel_weights[j] = _mm512_loadu_si512(weights + q * PANEL * 4 + j * 64);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, x + i * x_stride + q * 4, 4);
            __m512i inputs = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], inputs, panel_weights[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const ptrdiff_t place = first + j * LANES;
        if (place >= layer->f) break;
        const __mmask16 lanes = lanes_left(layer->f - place);
        const __m512 scales = _mm512_loadu_ps(layer->scales + place);
        const __m512 bias = _mm512_loadu_ps(layer->bias + place);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float *target = out + i * (ptrdiff_t)layer->f + place;
            __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][j]), _mm512_set1_ps(largest[i]));
            y = _mm512_fmadd_ps(y, scales, bias);
            if (adds) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, target));
            _mm512_mask_storeu_ps(target, lanes, y);
        }
    }
}

static void multiply_rows(const Linear *layer, const float *x, ptrdiff_t rows, float *out, int adds,
                          uint8_t *scratch) {
    const ptrdiff_t stride = padded(layer->w, 64), panels = padded(layer->f, PANEL) / PANEL;
    float *largest = (float *)(scratch + rows * stride);
    for (ptrdiff_t i = 0; i < rows; i++)
        largest[i] = quantize_row(x + i * layer->w, layer->w, scratch + i * stride);
    for (ptrdiff_t panel = 0; panel < panels; panel++)
        for (ptrdiff_t i = 0; i < rows; i += ROWS) {
            const uint8_t *inputs = scratch + i * stride;
            float *target = out + i * layer->f;
#define BLOCK(count)                                                                    \
    case count:                                                                         \
        multiply_block(count, layer, panel, inputs, stride, largest + i, target, adds); \
        break
            switch (rows - i) {
                BLOCK(1);
                BLOCK(2);
                BLOCK(3);
                BLOCK(4);
                BLOCK(5);
                default:
                    multiply_block(ROWS, layer, panel, inputs, stride, largest + i, target, adds);
            }
#undef BLOCK
        }
}

/* Bytes that `multiply` needs for rows of w numbers. */
int64_t multiply_scratch(int64_t rows, int64_t w) { return rows * (padded(w, 64) + 4) + 64; }

/* W x + b for rows [r, w]. */
void multiply(const Linear *layer, const float *x, int64_t rows, float *out, void *scratch) {
    multiply_rows(layer, x, rows, out, 0, scratch);
}

/* --------------------------------------------------------------------------------- norms */

static void normalize_row(const float *x, float *out, ptrdiff_t w, const Norm *norm) {
    __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    if (norm->is_centered)
        for (ptrdiff_t i = 0; i < w; i += LANES)
            sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes_left(w - i), x + i));
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / w);
    for (ptrdiff_t i = 0; i < w; i += LANES) {
        const __mmask16 lanes = lanes_left(w - i);
        __m512 v = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, x + i), mean);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float variance = _mm512_reduce_add_ps(squares) / w;
    const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(variance + norm->eps));
    for (ptrdiff_t i = 0; i < w; i += LANES) {
        const __mmask16 lanes = lanes_left(w - i);
        __m512 v = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), mean), factor);
        v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, norm->weight + i));
        if (norm->bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(lanes, norm->bias + i));
        _mm512_mask_storeu_ps(out + i, lanes, v);
    }
}

static void normalize(const float *x, float *out, ptrdiff_t rows, ptrdiff_t w, const Norm *norm) {
    for (ptrdiff_t i = 0; i < rows; i++) normalize_row(x + i * w, out + i * w, w, norm);
}

/* ----------------------------------------------------------------------------- attention */

/* The sums of sixteen registers, as one register: pairs are added within lanes, then lanes. */
static inline __m512 sum_each(const __m512 x[LANES]) {
    __m512 pairs[8], fours[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                                 _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const __m512 first = _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88),
                                       _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd));
    const __m512 last = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88),
                                      _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(first, last, 0x88),
                         _mm512_shuffle_f32x4(first, last, 0xdd));
}

static inline __m512 dot(const ptrdiff_t d, const float *a, const float *b) {
    __m512 product = _mm512_setzero_ps();
    for (ptrdiff_t i = 0; i < d; i += LANES) {
        const __mmask16 lanes = lanes_left(d - i);
        product = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, a + i),
                                  _mm512_maskz_loadu_ps(lanes, b + i), product);
    }
    return product;
}

/* softmax(q kᵀ · scale + bias) v of one query, over `count` keys: those at `cells`, or the first
   ones, `stride` numbers apart. Without a key, zeros. `scores` has room for one more register. */
static inline __attribute__((always_inline)) void attend(const ptrdiff_t d, const float *q,
                                                         const float *keys, const float *values,
                                                         ptrdiff_t stride, const int32_t *cells,
                                                         ptrdiff_t count, float scale,
                                                         const float *bias, float *scores,
                                                         float *out) {
    __m512 largest = _mm512_set1_ps(-__builtin_inff()), sum = _mm512_setzero_ps();
    for (ptrdiff_t first = 0; first < count; first += LANES) {
        const __mmask16 lanes = lanes_left(count - first);
        __m512 products[LANES];
#pragma GCC unroll 16
        for (ptrdiff_t j = 0; j < LANES; j++)
            products[j] = first + j < count
                              ? dot(d, q, keys + (cells ? cells[first + j] : first + j) * stride)
                              : _mm512_setzero_ps();
        __m512 score = _mm512_mul_ps(sum_each(products), _mm512_set1_ps(scale));
        if (bias && cells)
            score = _mm512_add_ps(
                score,
                _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes,
                                         _mm512_maskz_loadu_epi32(lanes, cells + first), bias, 4));
        else if (bias)
            score = _mm512_add_ps(score, _mm512_maskz_loadu_ps(lanes, bias + first));
        largest = _mm512_mask_max_ps(largest, lanes, largest, score);
        _mm512_storeu_ps(scores + first, score);
    }
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    for (ptrdiff_t j = 0; j < count; j += LANES) {
        const __m512 e = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + j), largest));
        sum = _mm512_mask_add_ps(sum, lanes_left(count - j), sum, e);
        _mm512_storeu_ps(scores + j, e);
    }
    const __m512 factor = _mm512_set1_ps(count ? 1.0f / _mm512_reduce_add_ps(sum) : 0.0f);
    for (ptrdiff_t i = 0; i < d; i += 2 * LANES) { /* four sums at a time hide their latency */
        const __mmask16 low = lanes_left(d - i),
                        high = d - i > LANES ? lanes_left(d - i - LANES) : 0;
        __m512 even[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        __m512 odd[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (ptrdiff_t j = 0; j < count; j += 2) {
            const float *a = values + (cells ? cells[j] : j) * stride + i;
            const __m512 weight = _mm512_set1_ps(scores[j]);
            even[0] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(low, a), even[0]);
            even[1] = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(high, a + LANES), even[1]);
            if (j + 1 == count) break;
            const float *b = values + (cells ? cells[j + 1] : j + 1) * stride + i;
            const __m512 next = _mm512_set1_ps(scores[j + 1]);
            odd[0] = _mm512_fmadd_ps(next, _mm512_maskz_loadu_ps(low, b), odd[0]);
            odd[1] = _mm512_fmadd_ps(next, _mm512_maskz_loadu_ps(high, b + LANES), odd[1]);
        }
        _mm512_mask_storeu_ps(out + i, low, _mm512_mul_ps(_mm512_add_ps(even[0], odd[0]), factor));
        if (high)
            _mm512_mask_storeu_ps(out + i + LANES, high,
                                  _mm512_mul_ps(_mm512_add_ps(even[1], odd[1]), factor));
    }
}

/* `attend` with the loops over a head's usual widths unrolled. */
static void attend_head(ptrdiff_t d, const float *q, const float *keys, const float *values,
                        ptrdiff_t stride, const int32_t *cells, ptrdiff_t count, float scale,
                        const float *bias, float *scores, float *out) {
    switch (d) {
        case 32: attend(32, q, keys, values, stride, cells, count, scale, bias, scores, out); break;
        case 64: attend(64, q, keys, values, stride, cells, count, scale, bias, scores, out); break;
        default: attend(d, q, keys, values, stride, cells, count, scale, bias, scores, out);
    }
}

/* The bias of one query to all keys, or null. */
static inline const float *bias_of(const Bias *bias, ptrdiff_t b, ptrdiff_t h, ptrdiff_t n) {
    return bias->start ? bias->start + b * bias->b + h * bias->h + n * bias->n : NULL;
}

/* Fetch the keys and values of the next head while this one is computed: they are far from its own,
   so that the CPU does not see them coming. */
static inline void prefetch(const float *keys, const float *values, ptrdiff_t numbers) {
    for (ptrdiff_t i = 0; i < numbers; i += LANES) {
        _mm_prefetch((const char *)(keys + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(values + i), _MM_HINT_T0);
    }
}

/* Rotate each pair (i, i + d/2) (Su et al. 2021). */
static void rotate(float *x, ptrdiff_t d, const float *cosines, const float *sines) {
    const ptrdiff_t half = d / 2;
    for (ptrdiff_t i = 0; i < half; i += LANES) {
        const __mmask16 lanes = lanes_left(half - i);
        const __m512 a = _mm512_maskz_loadu_ps(lanes, x + i),
                     b = _mm512_maskz_loadu_ps(lanes, x + half + i);
        const __m512 c = _mm512_maskz_loadu_ps(lanes, cosines + i),
                     s = _mm512_maskz_loadu_ps(lanes, sines + i);
        _mm512_mask_storeu_ps(x + i, lanes, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)));
        _mm512_mask_storeu_ps(x + half + i, lanes, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
    }
}

/* ---------------------------------------------------------------------------- a sublayer */

/* Parts of the scratch memory, each from a multiple of 64 bytes on. */
typedef struct {
    uint8_t *rounded; /* what `multiply_rows` needs */
    float *normed;    /* [r, w] */
    float *wide;      /* [r, widest]: queries, keys and values; the feed-forward layer */
    float *branch;    /* [r, widest]: what a sublayer's last linear layer reads */
    float *scores;    /* of one query, and room for one more register */
    int32_t *cells;   /* [r, c]: the cells that a row sees */
    int32_t *counts;  /* [r]: how many */
} Scratch;

/* Divide memory for so many rows, keys of a query and listed cells; returns its size in bytes. */
static int64_t divide(const Stack *stack, int64_t rows, int64_t keys, int64_t cells, void *memory,
                      Scratch *parts) {
    const int64_t widest = stack->widest;
    const int64_t sizes[] = {multiply_scratch(rows, widest),
                             rows * stack->width * 4,
                             rows * widest * 4,
                             rows * widest * 4,
                             (keys + LANES) * 4,
                             rows * cells * 4,
                             rows * 4};
    int64_t places[7], size = 0;
    for (int i = 0; i < 7; i++) {
        places[i] = size;
        size += padded(sizes[i], 64);
    }
    uint8_t *start = memory;
    if (start)
        *parts = (Scratch){start + places[0],
                           (float *)(start + places[1]),
                           (float *)(start + places[2]),
                           (float *)(start + places[3]),
                           (float *)(start + places[4]),
                           (int32_t *)(start + places[5]),
                           (int32_t *)(start + places[6])};
    return size;
}

/* What a sublayer reads of the stream: pre-norm, its norm. */
static const float *begin_sublayer(const Stack *stack, const Norm *norm, const float *x,
                                   ptrdiff_t rows, const Scratch *scratch) {
    if (!stack->is_pre_norm) return x;
    normalize(x, scratch->normed, rows, stack->width, norm);
    return scratch->normed;
}

/* Add a sublayer's branch, through its last linear layer, to the stream; post-norm, then the norm. */
static void end_sublayer(const Stack *stack, const Norm *norm, const Linear *last, float *x,
                         ptrdiff_t rows, const Scratch *scratch) {
    multiply_rows(last, scratch->branch, rows, x, 1, scratch->rounded);
    if (!stack->is_pre_norm) normalize(x, x, rows, stack->width, norm);
}

/* down(activation(up(x))), or down(activation(gate(x)) · up(x)): gates are the first half. */
static void feed_forward(const Stack *stack, const Block *block, float *x, ptrdiff_t rows,
                         const Scratch *scratch) {
    const float *read = begin_sublayer(stack, &block->feed_forward_norm, x, rows, scratch);
    multiply_rows(&block->up, read, rows, scratch->wide, 0, scratch->rounded);
    const ptrdiff_t hidden = block->down.w, all = block->up.f;
    for (ptrdiff_t row = 0; row < rows; row++)
        for (ptrdiff_t i = 0; i < hidden; i += LANES) {
            const __mmask16 lanes = lanes_left(hidden - i);
            const float *gate = scratch->wide + row * all + i;
            __m512 y = activated(_mm512_maskz_loadu_ps(lanes, gate), stack->activation);
            if (stack->is_gated) y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(lanes, gate + hidden));
            _mm512_mask_storeu_ps(scratch->branch + row * hidden + i, lanes, y);
        }
    end_sublayer(stack, &block->feed_forward_norm, &block->down, x, rows, scratch);
}

/* ------------------------------------------------------------------------- decoding steps */

/* Rows that go through all blocks together: few enough for what they compute to stay in the CPU's
   own cache, and enough to read the weights seldom. An input's hypotheses stay together. */
#define STEP_ROWS 32

/* Inputs `from` to `to` of a step, and their rows. */
typedef struct {
    const Step *step;
    ptrdiff_t from, rows;
    float *x; /* [r, w] */
} Part;

static ptrdiff_t inputs_at_once(const Step *step) {
    return step->beams < STEP_ROWS ? STEP_ROWS / step->beams : 1;
}

static int64_t divide_step(const Stack *stack, const Step *step, Scratch *parts) {
    const int64_t keys = step->cells > step->source_cells ? step->cells : step->source_cells;
    return divide(stack, inputs_at_once(step) * step->beams, keys, step->cells, step->scratch,
                  parts);
}

/* Bytes that `decode` needs as scratch memory. */
int64_t decode_scratch(const Stack *stack, const Step *step) {
    Scratch parts;
    return divide_step(stack, step, &parts);
}

/* The cells that each row sees, in order. */
static void list_visible(const Part *part, const Scratch *scratch) {
    const Step *step = part->step;
    for (ptrdiff_t row = 0; row < part->rows; row++) {
        const uint8_t *visible = step->visible + (part->from * step->beams + row) * step->cells;
        int32_t *cells = scratch->cells + row * step->cells, count = 0;
        if (!step->done[part->from + row / step->beams])
            for (int32_t cell = 0; cell < step->cells; cell++)
                if (visible[cell]) cells[count++] = cell;
        scratch->counts[row] = count;
    }
}

/* Rotate the queries and keys of a row, and write its keys and values into their cells. */
static void write_row(const Stack *stack, const Attention *layer, const LayerState *state,
                      const Step *step, ptrdiff_t input, ptrdiff_t beam, float *q) {
    const ptrdiff_t d = stack->head_width, h = layer->heads, g = layer->kv_heads;
    const float *k = q + h * d, *v = k + g * d;
    if (step->cosines) {
        const ptrdiff_t place = input * step->rotation_b;
        for (ptrdiff_t i = 0; i < h + g; i++)
            rotate(q + i * d, d, step->cosines + place, step->sines + place);
    }
    for (ptrdiff_t i = 0; i < g; i++) {
        const ptrdiff_t cell = (input * g + i) * step->cells + step->next_cells[beam];
        memcpy(state->keys + cell * d, k + i * d, d * 4);
        memcpy(state->values + cell * d, v + i * d, d * 4);
    }
}

static void self_attention(const Stack *stack, const Attention *layer, const LayerState *state,
                           const Part *part, const Scratch *scratch) {
    const Step *step = part->step;
    const ptrdiff_t d = stack->head_width, h = layer->heads, g = layer->kv_heads;
    const ptrdiff_t stride = layer->into.f;
    const float *read = begin_sublayer(stack, &layer->norm, part->x, part->rows, scratch);
    multiply_rows(&layer->into, read, part->rows, scratch->wide, 0, scratch->rounded);
    for (ptrdiff_t row = 0; row < part->rows; row++) /* all of them, before a query reads any */
        write_row(stack, layer, state, step, part->from + row / step->beams, row % step->beams,
                  scratch->wide + row * stride);
    for (ptrdiff_t row = 0; row < part->rows; row++) {
        const ptrdiff_t input = part->from + row / step->beams, beam = row % step->beams;
        const int32_t *cells = scratch->cells + row * step->cells, count = scratch->counts[row];
        if (count && cells[count - 1] == count - 1) cells = NULL; /* no gaps: the first ones */
        for (ptrdiff_t i = 0; i < h; i++) {
            const ptrdiff_t first = (input * g + i * g / h) * step->cells * d;
            const ptrdiff_t next = first + step->cells * d; /* of the last input, past the end */
            prefetch(state->keys + next, state->values + next, count * d);
            attend_head(d, scratch->wide + row * stride + i * d, state->keys + first,
                        state->values + first, d, cells, count, layer->scale,
                        bias_of(&state->bias, input, i, beam), scratch->scores,
                        scratch->branch + (row * h + i) * d);
        }
    }
    end_sublayer(stack, &layer->norm, &layer->out, part->x, part->rows, scratch);
}

static void cross_attention(const Stack *stack, const Attention *layer, const LayerState *state,
                            const Part *part, const Scratch *scratch) {
    const Step *step = part->step;
    const ptrdiff_t d = stack->head_width, h = layer->heads, g = layer->kv_heads;
    const float *read = begin_sublayer(stack, &layer->norm, part->x, part->rows, scratch);
    multiply_rows(&layer->into, read, part->rows, scratch->wide, 0, scratch->rounded);
    for (ptrdiff_t row = 0; row < part->rows; row++) {
        const ptrdiff_t input = part->from + row / step->beams;
        const ptrdiff_t count = step->done[input] ? 0 : step->source_ends[input];
        for (ptrdiff_t i = 0; i < h; i++) {
            const ptrdiff_t first = (input * g + i * g / h) * step->source_cells * d;
            const ptrdiff_t next = first + step->source_cells * d;
            prefetch(state->source_keys + next, state->source_values + next, count * d);
            attend_head(d, scratch->wide + (row * h + i) * d, state->source_keys + first,
                        state->source_values + first, d, NULL, count, layer->scale, NULL,
                        scratch->scores, scratch->branch + (row * h + i) * d);
        }
    }
    end_sublayer(stack, &layer->norm, &layer->out, part->x, part->rows, scratch);
}

/* One token of every row through all blocks: x becomes the stack's output, keys and values of the
   new tokens are written into their cells. */
void decode(const Stack *stack, const Step *step) {
    const ptrdiff_t at_once = inputs_at_once(step);
    Scratch scratch;
    divide_step(stack, step, &scratch);
    for (ptrdiff_t from = 0; from < step->inputs; from += at_once) {
        const ptrdiff_t inputs = step->inputs - from < at_once ? step->inputs - from : at_once;
        const ptrdiff_t rows = inputs * step->beams;
        float *x = step->x + from * step->beams * stack->width;
        const Part part = {step, from, rows, x};
        list_visible(&part, &scratch);
        for (int32_t i = 0; i < stack->layers; i++) {
            const Block *block = stack->blocks + i;
            self_attention(stack, &block->self, step->layers + i, &part, &scratch);
            if (stack->has_cross)
                cross_attention(stack, &block->cross, step->layers + i, &part, &scratch);
            feed_forward(stack, block, x, rows, &scratch);
        }
        if (stack->norm.weight) normalize(x, x, rows, stack->width, &stack->norm);
    }
}

/* The most probable token of each row of logits [r, v], the first of equal ones, and the logarithm
   of its probability; NaN where a logit is. */
void best_tokens(const float *logits, int64_t rows, int64_t v, int64_t *tokens, float *logprobs) {
    for (int64_t row = 0; row < rows; row++, logits += v) {
        __m512 best = _mm512_set1_ps(-__builtin_inff()), sum = _mm512_setzero_ps();
        __m512i places = _mm512_setzero_si512();
        __m512i here = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (int64_t i = 0; i < v; i += LANES) {
            const __m512 x = _mm512_mask_loadu_ps(best, lanes_left(v - i), logits + i);
            const __mmask16 above = _mm512_cmp_ps_mask(x, best, _CMP_GT_OQ);
            best = _mm512_mask_mov_ps(best, above, x);
            places = _mm512_mask_mov_epi32(places, above, here);
            here = _mm512_add_epi32(here, _mm512_set1_epi32(LANES));
        }
        const float most = _mm512_reduce_max_ps(best);
        const __mmask16 winners = _mm512_cmp_ps_mask(best, _mm512_set1_ps(most), _CMP_EQ_OQ);
        tokens[row] = _mm512_mask_reduce_min_epi32(winners, places);
        for (int64_t i = 0; i < v; i += LANES) {
            const __mmask16 lanes = lanes_left(v - i);
            const __m512 x = _mm512_maskz_loadu_ps(lanes, logits + i);
            sum = _mm512_mask_add_ps(sum, lanes, sum,
                                     exponential(_mm512_sub_ps(x, _mm512_set1_ps(most))));
        }
        logprobs[row] = -logf(_mm512_reduce_add_ps(sum));
    }
}

/* ------------------------------------------------------------------------------- sources */

/* Sources that are encoded together have at least so many tokens: few enough for the CPU's own
   cache, and enough to read the weights seldom. */
#define TOKENS 128

static int64_t divide_sources(const Stack *stack, const Sources *sources, Scratch *parts) {
    return divide(stack, TOKENS + sources->longest, sources->longest, 0, sources->scratch, parts);
}

/* Bytes that `encode` needs as scratch memory. */
int64_t encode_scratch(const Stack *stack, const Sources *sources) {
    Scratch parts;
    return divide_sources(stack, sources, &parts);
}

/* Attention of every token of sources `from` to `to` to all tokens of its own source. */
static void source_attention(const Stack *stack, const Attention *layer, const Bias *bias,
                             const Sources *sources, ptrdiff_t from, ptrdiff_t to,
                             const Scratch *scratch) {
    const ptrdiff_t begin = sources->starts[from], rows = sources->starts[to] - begin;
    const ptrdiff_t d = stack->head_width, h = layer->heads, g = layer->kv_heads;
    const ptrdiff_t stride = layer->into.f;
    float *x = sources->x + begin * stack->width;
    const float *read = begin_sublayer(stack, &layer->norm, x, rows, scratch);
    multiply_rows(&layer->into, read, rows, scratch->wide, 0, scratch->rounded);
    for (ptrdiff_t source = from; source < to; source++) {
        const ptrdiff_t first = sources->starts[source] - begin;
        const ptrdiff_t count = sources->starts[source + 1] - sources->starts[source];
        float *heads = scratch->wide + first * stride;
        if (sources->cosines)
            for (ptrdiff_t n = 0; n < count; n++)
                for (ptrdiff_t i = 0; i < h + g; i++)
                    rotate(heads + n * stride + i * d, d, sources->cosines + n * (d / 2),
                           sources->sines + n * (d / 2));
        for (ptrdiff_t i = 0; i < h; i++) {
            const float *keys = heads + (h + i * g / h) * d, *values = keys + g * d;
            for (ptrdiff_t n = 0; n < count; n++)
                attend_head(d, heads + n * stride + i * d, keys, values, stride, NULL, count,
                            layer->scale, bias_of(bias, 0, i, n), scratch->scores,
                            scratch->branch + ((first + n) * h + i) * d);
        }
    }
    end_sublayer(stack, &layer->norm, &layer->out, x, rows, scratch);
}

/* All tokens of all sources through all blocks. */
void encode(const Stack *stack, const Sources *sources) {
    Scratch scratch;
    divide_sources(stack, sources, &scratch);
    for (ptrdiff_t from = 0, to; from < sources->inputs; from = to) {
        const ptrdiff_t begin = sources->starts[from];
        for (to = from + 1; to < sources->inputs && sources->starts[to] - begin < TOKENS;) to++;
        const ptrdiff_t rows = sources->starts[to] - begin;
        float *x = sources->x + begin * stack->width;
        for (int32_t i = 0; i < stack->layers; i++) {
            source_attention(stack, &stack->blocks[i].self, sources->biases + i, sources, from, to,
                             &scratch);
            feed_forward(stack, stack->blocks + i, x, rows, &scratch);
        }
        if (stack->norm.weight) normalize(x, x, rows, stack->width, &stack->norm);
    }
}
