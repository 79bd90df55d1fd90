// The loss of one panel of samples and its slope, which is 0 for the samples filled up.
#pragma once
#include "layers.h"

template <class real> static void blank(count live, count width, real *g) {
    const count panel = Width<real>::panel;
    for (count k = 0; live < panel && k < width; k++)
        for (count s = live; s < panel; s++) g[k * panel + s] = 0;
}

// Sum of squares of out - goal; g becomes scale times its gradient.
template <class real>
static double squares(count live, double scale, count width, const real *out, const real *goal, real *g) {
    const count lanes = Width<real>::lanes, panel = Width<real>::panel;
    for (count i = 0; i < width * panel; i++) g[i] = out[i] - goal[i];
    blank(live, width, g);
    typename Width<real>::vec total = {};
    for (count i = 0; i < width * panel; i += lanes) total += load(g + i) * load(g + i);
    for (count i = 0; i < width * panel; i++) g[i] *= (real)(2 * scale);
    return sum_lanes<real>(total);
}

// Sum of log sum_k exp(out_k) - out_label; g becomes scale times its gradient.
template <class real>
static double cross_entropy(count live, double scale, count width, const real *out,
                            const count *labels, real *g) {
    const count panel = Width<real>::panel;
    double total = 0;
    real most[Width<real>::panel], sum[Width<real>::panel] = {};
    for (count s = 0; s < panel; s++) most[s] = out[s];
    for (count k = 1; k < width; k++)
        for (count s = 0; s < panel; s++)
            most[s] = out[k * panel + s] > most[s] ? out[k * panel + s] : most[s];
    for (count k = 0; k < width; k++)
        for (count s = 0; s < panel; s++) {
            real e = exp_(out[k * panel + s] - most[s]);
            sum[s] += e;
            g[k * panel + s] = e;
        }
    for (count k = 0; k < width; k++)
        for (count s = 0; s < panel; s++) g[k * panel + s] *= (real)scale / sum[s];
    for (count s = 0; s < live; s++) {
        total += std::log((double)sum[s]) + ((double)most[s] - out[labels[s] * panel + s]);
        g[labels[s] * panel + s] -= (real)scale;
    }
    blank(live, width, g);
    return total;
}
