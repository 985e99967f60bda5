// What a decode step does between its matrix products, in bfloat16 on a CPU. Compiled by kernels.py for one HEAD_SIZE and for one
// number of query heads that share a key-value head, SIBLINGS, so that a head's sums stay in registers.

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bfloat16;

#define KEYS_AT_ONCE 64
#define KEYS_AHEAD 8
#define CACHE_LINE 32 // bfloat16 numbers
#define WORTH_THREADS 65536 // numbers: waking a thread takes as long as some ten thousand

static inline float widen(bfloat16 narrow) {
    uint32_t bits = (uint32_t)narrow << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static inline bfloat16 narrow(float wide) {
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    return (bfloat16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// x / sqrt(mean(x²) + epsilon), rounded, times the weight: [rows, features] each.
void rms_norm(const bfloat16 *inputs, const bfloat16 *weight, bfloat16 *outputs, int64_t rows, int64_t features, float epsilon, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * features >= WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const bfloat16 *x = inputs + row * features;
        bfloat16 *y = outputs + row * features;
        float squares = 0;
        for (int64_t i = 0; i < features; i++) squares += widen(x[i]) * widen(x[i]);
        float scale = 1 / sqrtf(squares / features + epsilon);
        for (int64_t i = 0; i < features; i++) y[i] = narrow(widen(narrow(widen(x[i]) * scale)) * widen(weight[i]));
    }
}

// Turns the pairs (i, i + HEAD_SIZE / 2) of all query and key heads of `heads` [tokens, query + 2 · key heads, HEAD_SIZE] by the token's
// angles [tokens, HEAD_SIZE], in place, and copies keys and values to the tokens' rows of `cache` [rows, 2 · key heads, HEAD_SIZE].
void rotate_and_write(bfloat16 *heads, const bfloat16 *cos, const bfloat16 *sin, bfloat16 *cache, const int64_t *rows, int64_t tokens,
                      int64_t key_heads, int threads) {
    const int64_t rotated = key_heads * (SIBLINGS + 1), all = rotated + key_heads, half = HEAD_SIZE / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1 && tokens >= 16)
    for (int64_t token = 0; token < tokens; token++) {
        const bfloat16 *c = cos + token * HEAD_SIZE, *s = sin + token * HEAD_SIZE;
        bfloat16 *own = heads + token * all * HEAD_SIZE;
        for (int64_t head = 0; head < rotated; head++) {
            bfloat16 *x = own + head * HEAD_SIZE;
            for (int64_t i = 0; i < half; i++) {
                float a = widen(x[i]), b = widen(x[i + half]);
                x[i] = narrow(a * widen(c[i]) - b * widen(s[i]));
                x[i + half] = narrow(b * widen(c[i + half]) + a * widen(s[i + half]));
            }
        }
        memcpy(cache + rows[token] * 2 * key_heads * HEAD_SIZE, own + key_heads * SIBLINGS * HEAD_SIZE, 2 * key_heads * HEAD_SIZE * sizeof *own);
    }
}

typedef struct {
    float largest[SIBLINGS], sum[SIBLINGS], mixed[SIBLINGS][HEAD_SIZE];
} Softmax;

// Takes `number` further keys and values, `stride` elements apart, into a running softmax.
static void attend_to(Softmax *softmax, float queries[SIBLINGS][HEAD_SIZE], const bfloat16 *keys, const bfloat16 *values, int64_t number,
                      int64_t stride) {
    float scores[SIBLINGS][KEYS_AT_ONCE];
    for (int64_t first = 0; first < number; first += KEYS_AT_ONCE) {
        const int64_t count = number - first < KEYS_AT_ONCE ? number - first : KEYS_AT_ONCE;
        for (int64_t j = 0; j < count; j++) {
            const bfloat16 *key = keys + (first + j) * stride, *value = values + (first + j) * stride;
            // Rows stand too far apart for the processor to foresee the next ones.
            for (int i = 0; i < HEAD_SIZE; i += CACHE_LINE) {
                __builtin_prefetch(key + KEYS_AHEAD * stride + i);
                __builtin_prefetch(value + KEYS_AHEAD * stride + i);
            }
            for (int g = 0; g < SIBLINGS; g++) {
                float score = 0;
                for (int i = 0; i < HEAD_SIZE; i++) score += queries[g][i] * widen(key[i]);
                scores[g][j] = score;
            }
        }
        for (int g = 0; g < SIBLINGS; g++) {
            float largest = softmax->largest[g], sum = 0;
            for (int64_t j = 0; j < count; j++) largest = scores[g][j] > largest ? scores[g][j] : largest;
            const float correction = expf(softmax->largest[g] - largest);
            for (int64_t j = 0; j < count; j++) sum += scores[g][j] = expf(scores[g][j] - largest);
            softmax->sum[g] = softmax->sum[g] * correction + sum;
            softmax->largest[g] = largest;
            for (int i = 0; i < HEAD_SIZE; i++) softmax->mixed[g][i] *= correction;
        }
        for (int64_t j = 0; j < count; j++) {
            const bfloat16 *value = values + (first + j) * stride;
            for (int g = 0; g < SIBLINGS; g++)
                for (int i = 0; i < HEAD_SIZE; i++) softmax->mixed[g][i] += scores[g][j] * widen(value[i]);
        }
    }
}

// Attention of one token of each rollout over two stretches of the cache [rows, 2, key heads, HEAD_SIZE], `spans` [tokens, 2, (first row,
// number of rows)]. Queries are `row_size` elements apart; outputs are [tokens, query heads, HEAD_SIZE].
void attend_decoded(const bfloat16 *queries, int64_t row_size, const bfloat16 *cache, const int64_t *spans, bfloat16 *outputs, int64_t tokens,
                    int64_t key_heads, float scaling, int threads) {
    const int64_t stride = 2 * key_heads * HEAD_SIZE;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t unit = 0; unit < tokens * key_heads; unit++) {
        // A token's heads one after the other, as their keys stand side by side in memory.
        const int64_t token = unit / key_heads, head = unit % key_heads;
        const bfloat16 *query = queries + token * row_size + head * SIBLINGS * HEAD_SIZE;
        float scaled[SIBLINGS][HEAD_SIZE];
        Softmax softmax;
        for (int g = 0; g < SIBLINGS; g++) {
            softmax.largest[g] = -FLT_MAX / 2;
            softmax.sum[g] = 0;
            for (int i = 0; i < HEAD_SIZE; i++) {
                scaled[g][i] = widen(query[g * HEAD_SIZE + i]) * scaling;
                softmax.mixed[g][i] = 0;
            }
        }
        for (int span = 0; span < 2; span++) {
            const int64_t first = spans[token * 4 + span * 2], number = spans[token * 4 + span * 2 + 1];
            const bfloat16 *keys = cache + first * stride + head * HEAD_SIZE;
            attend_to(&softmax, scaled, keys, keys + key_heads * HEAD_SIZE, number, stride);
        }
        bfloat16 *output = outputs + (token * key_heads + head) * SIBLINGS * HEAD_SIZE;
        for (int g = 0; g < SIBLINGS; g++)
            for (int i = 0; i < HEAD_SIZE; i++) output[g * HEAD_SIZE + i] = narrow(softmax.mixed[g][i] / softmax.sum[g]);
    }
}
