// What each layer computes for one panel, and its gradient written out.
#pragma once
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

// e^x - 1 = 2^n (p + 1) - 1 with x = n ln 2 + r and p = r + r²/2! + ... Branch-free, so that loops
// over it become vector instructions; exact to a few units in the last place, also near 0.
template <class real> struct Exp;
template <> struct Exp<float> {
    typedef int bits;
    static constexpr float low = -87.f, high = 88.f, magic = 12582912.f;
    static constexpr float ln2_high = 0.693145752f, ln2_low = 1.42860677e-6f;
    static const int terms = 7, shift = 23, bias = 127, log_terms = 8;
};
template <> struct Exp<double> {
    typedef long long bits;
    static constexpr double low = -708., high = 709., magic = 6755399441055744.;
    static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
    static const int terms = 13, shift = 52, bias = 1023, log_terms = 17;
};

static constexpr double inverse_factorial(int k) { return k < 2 ? 1. : inverse_factorial(k - 1) / k; }

template <class real> static inline void exp_parts(real x, real &p, real &power) {
    typedef Exp<real> E;
    x = x < E::low ? E::low : x;
    x = x > E::high ? E::high : x;
    real shifted = x * (real)1.4426950408889634 + E::magic;
    real n = shifted - E::magic;
    real r = (x - n * E::ln2_high) - n * E::ln2_low;
    p = (real)inverse_factorial(E::terms);
    for (int k = E::terms - 1; k > 0; k--) p = p * r + (real)inverse_factorial(k);
    p *= r;
    typename E::bits whole, wanted;
    real base = E::magic;
    memcpy(&whole, &shifted, sizeof whole);
    memcpy(&wanted, &base, sizeof wanted);
    whole = (whole - wanted + E::bias) << E::shift;
    memcpy(&power, &whole, sizeof power);
}

template <class real> static inline real exp_(real x) {
    real p, power;
    exp_parts(x, p, power);
    return power * p + power;
}

template <class real> static inline real expm1_(real x) {
    real p, power;
    exp_parts(x, p, power);
    return power * p + (power - 1);
}

// 0 where exp would be cut off: x sigmoid(x) must vanish there.
template <class real> static inline real sigmoid_(real x) {
    return x < Exp<real>::low ? 0 : 1 / (1 + exp_(-x));
}

template <class real> static inline real tanh_(real x) {
    real e = expm1_(-2 * (x < 0 ? -x : x));
    real size = -e / (2 + e);
    return x < 0 ? -size : size;
}

// log(1 + u) for 0 <= u <= 1, as 2 artanh(s) = 2 (s + s³/3 + ...) with s = u / (2 + u) <= 1/3.
template <class real> static inline real log1p_(real u) {
    real s = u / (2 + u), square = s * s, sum = 0;
    for (int k = Exp<real>::log_terms - 1; k >= 0; k--) sum = sum * square + 1 / (real)(2 * k + 1);
    return 2 * s * sum;
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): nothing overflows. As in PyTorch, x itself above 20.
template <class real> static inline real softplus_(real x) {
    real down = x < 0 ? x : -x, rest = down < Exp<real>::low ? 0 : log1p_(exp_(down));
    return x > 20 ? x : (x < 0 ? 0 : x) + rest;
}

static inline double erf_(double x) { return erf(x); }
static inline float erf_(float x) { return erff(x); }

template <class real> static inline real normal_cdf(real x) {
    return (real)0.5 * (1 + erf_(x * (real)0.7071067811865476));
}

template <class real>
static void elementwise(count kind, count n, const real *__restrict x, real *__restrict y) {
    switch (kind) {
    case ABS: for (count i = 0; i < n; i++) y[i] = x[i] < 0 ? -x[i] : x[i]; break;
    case RELU: for (count i = 0; i < n; i++) y[i] = x[i] < 0 ? 0 : x[i]; break;
    case NEG: for (count i = 0; i < n; i++) y[i] = -x[i]; break;
    case SIGMOID: for (count i = 0; i < n; i++) y[i] = sigmoid_(x[i]); break;
    case SILU: for (count i = 0; i < n; i++) y[i] = x[i] * sigmoid_(x[i]); break;
    case TANH: for (count i = 0; i < n; i++) y[i] = tanh_(x[i]); break;
    case GELU: for (count i = 0; i < n; i++) y[i] = x[i] * normal_cdf(x[i]); break;
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
        for (count i = 0; i < n; i++)
            g[i] *= normal_cdf(x[i])
                    + x[i] * (real)0.3989422804014327 * exp_((real)-0.5 * x[i] * x[i]);
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

// y_k = ‖alpha_k (x - mu_k)‖, or by the published code sqrt(max(sum alpha (x - mu)², 1e-12)).
template <class real>
static void offset_l2(const Layer &layer, const real *values, const real *x, real *y) {
    typedef typename Width<real>::vec vec;
    const count lanes = Width<real>::lanes, panel = Width<real>::panel, width = layer.inputs;
    const bool code = layer.kind == OFFSET_L2_CODE;
    for (count k = 0; k < layer.outputs; k++) {
        const real *mu = values + layer.offset + k * width, *alpha = mu + layer.outputs * width;
        vec total[2] = {};
        for (count d = 0; d < width; d++) {
            real weight = code ? alpha[d] : alpha[d] * alpha[d];
            for (int half = 0; half < 2; half++) {
                vec away = load(x + d * panel + half * lanes) - mu[d];
                total[half] += weight * (away * away);
            }
        }
        real *out = y + k * panel;
        store(out, total[0]), store(out + lanes, total[1]);
        if (code)
            for (count s = 0; s < panel; s++) out[s] = out[s] < (real)1e-12 ? (real)1e-12 : out[s];
        for (count s = 0; s < panel; s++) out[s] = std::sqrt(out[s]);
    }
}

// Adds to the gradients of mu and alpha; `g_in` (or null) is the gradient of the input.
template <class real>
static void offset_l2_back(const Layer &layer, const real *values, const real *x, const real *y,
                           const real *g, real *g_in, real *gradient) {
    typedef typename Width<real>::vec vec;
    const count lanes = Width<real>::lanes, panel = Width<real>::panel, width = layer.inputs;
    const bool code = layer.kind == OFFSET_L2_CODE;
    if (g_in) memset(g_in, 0, width * panel * sizeof(real));
    for (count k = 0; k < layer.outputs; k++) {
        count place = layer.offset + k * width, other = place + layer.outputs * width;
        const real *mu = values + place, *alpha = values + other;
        real *d_mu = gradient + place, *d_alpha = gradient + other;
        real slope[Width<real>::panel];
        for (count s = 0; s < panel; s++) {
            real root = y[k * panel + s];
            bool flat = code ? root <= std::sqrt((real)1e-12) : !(root > 0);
            slope[s] = flat ? 0 : g[k * panel + s] / root;
        }
        for (count d = 0; d < width; d++) {
            real weight = code ? alpha[d] : alpha[d] * alpha[d];
            vec first = {}, second = {};
            for (int half = 0; half < 2; half++) {
                vec away = load(x + d * panel + half * lanes) - mu[d];
                vec pull = load(slope + half * lanes) * away;
                first += pull;
                second += pull * away;
                if (g_in) {
                    real *to = g_in + d * panel + half * lanes;
                    store(to, load(to) + weight * pull);
                }
            }
            d_mu[d] -= weight * sum_lanes<real>(first);
            d_alpha[d] += (code ? (real)0.5 : alpha[d]) * sum_lanes<real>(second);
        }
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
