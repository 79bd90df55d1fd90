// What each layer computes for one panel, and its gradient written out.
#pragma once
#include "functions.h"
#include "tiles.h"
#include <cmath>
#include <string.h>

enum Kind {
    LINEAR,
    ABS, RELU, ABS_RELU, SIGMOID, GELU, SILU, TANH, SOFTPLUS, LEAKY_RELU, NEG,  // unit by unit
    NORM, OFFSET_L2, OFFSET_L2_CODE, POINT_SLOPE
};

// One layer: its widths, where its parameters begin in a trial's row of values, how many units of an
// ABS_RELU are absolute values, from the first on, and the slope of a LEAKY_RELU below 0.
struct Layer {
    count kind, inputs, outputs, offset, bias, absolute;
    double slope;
};

// Whether a layer is a matrix product and a number per unit.
static inline bool affine(const Layer &layer) { return layer.kind == LINEAR || layer.kind == POINT_SLOPE; }

template <class real>
static void elementwise(count kind, count n, const real *__restrict x, real *__restrict y) {
    switch (kind) {
    case ABS: for (count i = 0; i < n; i++) y[i] = x[i] < 0 ? -x[i] : x[i]; break;
    case RELU: for (count i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i]; break;
    case NEG: for (count i = 0; i < n; i++) y[i] = -x[i]; break;
    case SIGMOID: for (count i = 0; i < n; i++) y[i] = sigmoid_(x[i]); break;
    case SILU: for (count i = 0; i < n; i++) y[i] = x[i] * sigmoid_(x[i]); break;
    case TANH: for (count i = 0; i < n; i++) y[i] = tanh_(x[i]); break;
    case GELU: for (count i = 0; i < n; i++) y[i] = gelu_(x[i]); break;
    case SOFTPLUS: for (count i = 0; i < n; i++) y[i] = softplus_(x[i]); break;
    }
}

// The gradient of the output, in `g`, becomes that of the input.
template <class real>
static void elementwise_back(count kind, count n, const real *__restrict x,
                             const real *__restrict y, real *__restrict g) {
    switch (kind) {
    case ABS: for (count i = 0; i < n; i++) g[i] = x[i] < 0 ? -g[i] : x[i] > 0 ? g[i] : 0; break;
    case RELU: for (count i = 0; i < n; i++) g[i] = x[i] > 0 ? g[i] : 0; break;
    case NEG: for (count i = 0; i < n; i++) g[i] = -g[i]; break;
    case SIGMOID: for (count i = 0; i < n; i++) g[i] *= y[i] * (1 - y[i]); break;
    case TANH: for (count i = 0; i < n; i++) g[i] *= 1 - y[i] * y[i]; break;
    case SOFTPLUS: for (count i = 0; i < n; i++) g[i] *= x[i] > 20 ? 1 : sigmoid_(x[i]); break;
    case SILU:
        for (count i = 0; i < n; i++) {
            real s = sigmoid_(x[i]);
            g[i] *= s * (1 + x[i] * (1 - s));
        }
        break;
    case GELU:
        for (count i = 0; i < n; i++) {
            real bell, cdf = normal_cdf(x[i], bell);
            g[i] *= cdf + x[i] * (real)0.3989422804014327 * bell;
        }
        break;
    }
}

template <class real>
static void leaky_relu(real slope, count n, const real *__restrict x, real *__restrict y) {
    for (count i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : slope * x[i];
}

template <class real>
static void leaky_relu_back(real slope, count n, const real *__restrict x, real *__restrict g) {
    for (count i = 0; i < n; i++) g[i] = x[i] > 0 ? g[i] : slope * g[i];
}

// An elementwise layer on n samples, a whole number of panels [unit][PANEL]; all units alike but
// those of ABS_RELU.
template <class real> static void activate(const Layer &layer, count n, const real *x, real *y) {
    const count all = layer.outputs * n, step = layer.outputs * Width<real>::panel;
    const count some = layer.absolute * Width<real>::panel;
    if (layer.kind == LEAKY_RELU) return leaky_relu((real)layer.slope, all, x, y);
    if (layer.kind != ABS_RELU) return elementwise(layer.kind, all, x, y);
    for (count at = 0; at < all; at += step) {
        elementwise(ABS, some, x + at, y + at);
        elementwise(RELU, step - some, x + at + some, y + at + some);
    }
}

template <class real>
static void activate_back(const Layer &layer, count n, const real *x, const real *y, real *g) {
    const count all = layer.outputs * n, step = layer.outputs * Width<real>::panel;
    const count some = layer.absolute * Width<real>::panel;
    if (layer.kind == LEAKY_RELU) return leaky_relu_back((real)layer.slope, all, x, g);
    if (layer.kind != ABS_RELU) return elementwise_back(layer.kind, all, x, y, g);
    for (count at = 0; at < all; at += step) {
        elementwise_back(ABS, some, x + at, y + at, g + at);
        elementwise_back(RELU, step - some, x + at + some, y + at + some, g + at + some);
    }
}

// sqrt(sum_k x_k²) of every sample.
template <class real> static void norm(count width, const real *x, real *y) {
    typedef typename Width<real>::vec vec;
    const count lanes = Width<real>::lanes, panel = Width<real>::panel;
    vec total[2] = {};
    for (count k = 0; k < width; k++)
        for (int half = 0; half < 2; half++) {
            vec v = load(x + k * panel + half * lanes);
            total[half] += v * v;
        }
    store(y, total[0]), store(y + lanes, total[1]);
    for (count s = 0; s < panel; s++) y[s] = std::sqrt(y[s]);
}

// Where the norm is 0 its slope is infinite; there the gradient is defined as 0.
template <class real>
static void norm_back(count width, const real *x, const real *y, const real *g, real *g_in) {
    typedef typename Width<real>::vec vec;
    const count lanes = Width<real>::lanes, panel = Width<real>::panel;
    real weight[Width<real>::panel];
    for (count s = 0; s < panel; s++) weight[s] = y[s] > 0 ? g[s] / y[s] : 0;
    for (int half = 0; half < 2; half++) {
        vec w = load(weight + half * lanes);
        for (count k = 0; k < width; k++)
            store(g_in + k * panel + half * lanes, w * load(x + k * panel + half * lanes));
    }
}

// y_k = ‖alpha_k (x - mu_k)‖, or by the published code sqrt(max(sum alpha (x - mu)², 1e-12)), for COUNT
// prototypes: their sums do not wait for each other.
template <class real, int COUNT>
static void offset_l2_of(const Layer &layer, const real *mu, const real *alpha, const real *x, real *y) {
    typedef Vector<real, WIDE> V;
    const count panel = Width<real>::panel, width = layer.inputs;
    const int vecs = panel / V::lanes;
    const bool code = layer.kind == OFFSET_L2_CODE;
    typename V::vec total[COUNT][vecs] = {};
    for (count d = 0; d < width; d++)
        for (int k = 0; k < COUNT; k++) {
            const real a = alpha[k * width + d], weight = code ? a : a * a;
            for (int v = 0; v < vecs; v++) {
                const typename V::vec away = V::load(x + d * panel + v * V::lanes) - mu[k * width + d];
                total[k][v] += weight * (away * away);
            }
        }
    for (int k = 0; k < COUNT; k++, y += panel) {
        for (int v = 0; v < vecs; v++) V::store(y + v * V::lanes, total[k][v]);
        if (code)
            for (count s = 0; s < panel; s++) y[s] = y[s] < (real)1e-12 ? (real)1e-12 : y[s];
        for (count s = 0; s < panel; s++) y[s] = std::sqrt(y[s]);
    }
}

// The same for one panel and all prototypes.
template <class real>
static void offset_l2(const Layer &layer, const real *values, const real *x, real *y) {
    const count panel = Width<real>::panel, width = layer.inputs, size = layer.outputs * width;
    const real *mu = values + layer.offset;
    count left = layer.outputs;
    for (; left >= 5; left -= 5, mu += 5 * width, y += 5 * panel) offset_l2_of<real, 5>(layer, mu, mu + size, x, y);
    for (; left > 0; left--, mu += width, y += panel) offset_l2_of<real, 1>(layer, mu, mu + size, x, y);
}

// The gradient of PANELS panels, for offset_l2_back below.
template <class real, int PANELS>
static void offset_l2_back_of(const Layer &layer, const real *values, const real *x, const real *y,
                              real *g, real *g_in, real *sums) {
    typedef Vector<real, WIDE> V;
    typedef typename V::vec vec;
    const count panel = Width<real>::panel, lanes = V::lanes, width = layer.inputs;
    const count x_step = width * panel, g_step = layer.outputs * panel;
    const int vecs = panel / lanes;
    const bool code = layer.kind == OFFSET_L2_CODE;
    const real least = code ? std::sqrt((real)1e-12) : 0;
    for (count i = 0; i < PANELS * g_step; i++) g[i] = y[i] > least ? g[i] / y[i] : 0;
    const real *mus = values + layer.offset, *alphas = mus + layer.outputs * width;
    for (count d = 0; d < width; d++) {
        vec down[PANELS][vecs] = {};
        for (count k = 0; k < layer.outputs; k++, sums += 2 * panel) {
            const real mu = mus[k * width + d], alpha = alphas[k * width + d];
            const real weight = code ? alpha : alpha * alpha;
            for (int v = 0; v < vecs; v++) {
                vec first = V::load(sums + v * lanes), second = V::load(sums + panel + v * lanes);
                for (int p = 0; p < PANELS; p++) {
                    const vec away = V::load(x + p * x_step + d * panel + v * lanes) - mu;
                    const vec pull = V::load(g + p * g_step + k * panel + v * lanes) * away;
                    first += pull, second += pull * away, down[p][v] += weight * pull;
                }
                V::store(sums + v * lanes, first), V::store(sums + panel + v * lanes, second);
            }
        }
        for (int p = 0; g_in && p < PANELS; p++)
            for (int v = 0; v < vecs; v++) V::store(g_in + p * x_step + d * panel + v * lanes, down[p][v]);
    }
}

// Adds what the gradients of mu and alpha are made of to `sums`, as [D][K][2] panels along samples:
// slope (x - mu) and slope (x - mu)^2. The gradient of the output, in `g`, becomes the slope g / y;
// `g_in` (or null) is that of the input. The sums are larger than the first-level cache, so a few of the
// n samples' panels share a pass over them.
static const count OFFSET_L2_PANELS = 4;
template <class real>
static void offset_l2_back(const Layer &layer, count n, const real *values, const real *x, const real *y,
                           real *g, real *g_in, real *sums) {
    const count panel = Width<real>::panel;
    for (count left = n / panel, some; left > 0; left -= some) {
        some = left < OFFSET_L2_PANELS ? 1 : OFFSET_L2_PANELS;
        if (some == 1) offset_l2_back_of<real, 1>(layer, values, x, y, g, g_in, sums);
        else offset_l2_back_of<real, OFFSET_L2_PANELS>(layer, values, x, y, g, g_in, sums);
        const count down = some * panel * layer.inputs, up = some * panel * layer.outputs;
        x += down, y += up, g += up, g_in += g_in ? down : 0;
    }
}

// What these sums add to the gradients of mu and alpha.
template <class real>
static void offset_l2_end(const Layer &layer, const real *values, const real *sums, real *gradient) {
    const count panel = Width<real>::panel, lanes = Width<real>::lanes, size = layer.outputs * layer.inputs;
    const bool code = layer.kind == OFFSET_L2_CODE;
    for (count d = 0; d < layer.inputs; d++)
        for (count k = 0; k < layer.outputs; k++, sums += 2 * panel) {
            const count mu = layer.offset + k * layer.inputs + d;
            const real alpha = values[mu + size];
            const real first = sum_lanes<real>(load(sums) + load(sums + lanes));
            const real second = sum_lanes<real>(load(sums + panel) + load(sums + panel + lanes));
            gradient[mu] -= (code ? alpha : alpha * alpha) * first;
            gradient[mu + size] += (code ? (real)0.5 : alpha) * second;
        }
}

// y_k = w_k (x - p_k) is affine: w_k x + start_k with start_k = -w_k p_k.
template <class real> static void point_slope_starts(const Layer &layer, const real *values, real *starts) {
    const count size = layer.outputs * layer.inputs;
    for (count k = 0; k < layer.outputs; k++) {
        const real *w = values + layer.offset + k * layer.inputs, *p = w + size;
        starts[k] = 0;
        for (count d = 0; d < layer.inputs; d++) starts[k] -= w[d] * p[d];
    }
}

// What the gradient of start_k, in `sums`, adds to those of w and p.
template <class real>
static void point_slope_back(const Layer &layer, const real *values, const real *sums, real *gradient) {
    const count size = layer.outputs * layer.inputs;
    for (count k = 0; k < layer.outputs; k++)
        for (count d = 0; d < layer.inputs; d++) {
            const count w = layer.offset + k * layer.inputs + d, p = w + size;
            gradient[w] -= sums[k] * values[p];
            gradient[p] -= sums[k] * values[w];
        }
}
