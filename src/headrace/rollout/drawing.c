// Drawing a token from a row of bfloat16 logits by inverting its cumulative distribution; see sampling.py. Compiled by drawing.py.

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bfloat16;

#define BLOCK 256

static inline float widen(bfloat16 narrow) {
    uint32_t bits = (uint32_t)narrow << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// exp(logit · factor - largest) of a block; returns the sum.
static inline float weigh(const bfloat16 *logits, int64_t count, float factor, float largest, float *weights) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += weights[i] = expf(widen(logits[i]) * factor - largest);
    return sum;
}

static int64_t likeliest(const bfloat16 *logits, int64_t vocabulary, float largest) {
    int64_t token = 0;
    while (token < vocabulary - 1 && widen(logits[token]) != largest) token++;
    return token;
}

// Where the running sum of the weights passes `uniform` · total. `running` is of the blocks; the last one is the total.
static int64_t invert(const bfloat16 *logits, int64_t vocabulary, float factor, float largest, const double *running, int64_t blocks,
                      double uniform) {
    const double total = running[blocks - 1], target = fmin(uniform * total, nextafter(total, 0));
    int64_t block = 0;
    while (block < blocks - 1 && running[block] <= target) block++;
    const int64_t first = block * BLOCK, count = vocabulary - first < BLOCK ? vocabulary - first : BLOCK;
    float weights[BLOCK];
    double inside = 0, sum = 0;
    weigh(logits + first, count, factor, largest, weights);
    for (int64_t i = 0; i < count; i++) sum += weights[i];
    const double rest = fmin(fmax(target - (block ? running[block - 1] : 0), 0), nextafter(sum, 0));
    int64_t i = 0;
    while (i < count - 1 && (inside += weights[i]) <= rest) i++;
    return first + i;
}

// One token for each row of `logits` [rows, vocabulary], and its log-probability (NaN for a row that is no distribution). `temperatures`
// and `uniforms` are one a row; temperature 0 takes the likeliest token.
void draw(const bfloat16 *logits, const double *temperatures, const double *uniforms, int64_t *tokens, double *logprobs, int64_t rows,
          int64_t vocabulary, int threads) {
    const int64_t blocks = (vocabulary + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const bfloat16 *own = logits + row * vocabulary;
        const float factor = temperatures[row] > 0 ? 1 / temperatures[row] : 1;
        float top = widen(own[0]), weights[BLOCK];
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < vocabulary; i++) top = widen(own[i]) > top ? widen(own[i]) : top;
        const float largest = top * factor;
        double running[blocks], total = 0;
        for (int64_t block = 0, first = 0; block < blocks; block++, first += BLOCK) {
            const int64_t count = vocabulary - first < BLOCK ? vocabulary - first : BLOCK;
            running[block] = total += weigh(own + first, count, factor, largest, weights);
        }
        tokens[row] = temperatures[row] > 0 ? invert(own, vocabulary, factor, largest, running, blocks, uniforms[row])
                                            : likeliest(own, vocabulary, top);
        logprobs[row] = (double)(widen(own[tokens[row]]) * factor - largest) - log(total);
    }
}
