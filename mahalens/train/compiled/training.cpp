// Entry points: the gradient of one trial on a range of samples, one update of its values, and
// whole epochs of its training.
#include "engine.cpp"
#ifdef __SSE__
#include <xmmintrin.h>
#endif

// While it lives, numbers below the normal range count as 0 in this thread. Softmax leaves many of them for
// samples it is sure of, and some processors take a hundred cycles for each.
struct FlushToZero {
#ifdef __SSE__
    const unsigned before = _mm_getcsr();
    FlushToZero() { _mm_setcsr(before | 0x8040); }  // results and operands
    ~FlushToZero() { _mm_setcsr(before); }
#else
    FlushToZero() {}
#endif
};

template <class real>
static void update(const Training &t, count step, count width, const real *__restrict g,
                   real *__restrict values, real *__restrict m, real *__restrict v) {
    if (!t.adam) {
        real rate = (real)t.lr, momentum = (real)t.momentum;
        if (momentum == 0) {
            for (count i = 0; i < width; i++) values[i] -= rate * g[i];
            return;
        }
        for (count i = 0; i < width; i++) {
            m[i] = momentum * m[i] + g[i];
            values[i] -= rate * m[i];
        }
        return;
    }
    real beta1 = (real)t.momentum, beta2 = (real)t.beta2, eps = (real)t.eps;
    real gain1 = (real)(1 - t.momentum), gain2 = (real)(1 - t.beta2);
    real root = (real)std::sqrt(1 - pow(t.beta2, (double)step));
    real rate = (real)(t.lr / (1 - pow(t.momentum, (double)step)));
    for (count i = 0; i < width; i++) {
        m[i] = beta1 * m[i] + gain1 * g[i];
        v[i] = beta2 * v[i] + gain2 * g[i] * g[i];
        values[i] -= rate * m[i] / (std::sqrt(v[i]) / root + eps);
    }
}

// Whether a trial ends with this loss. `best` and `since` remember its lowest loss and its age.
static count judge(const Training &t, double loss, double *best, count *since) {
    if (!std::isfinite(loss)) return NON_FINITE;
    if (loss <= t.target) return REACHED;
    if (!t.patience) return RUNNING;
    double bar = std::isinf(*best) ? *best : *best - t.gain * std::fabs(*best);
    if (loss < bar) *best = loss, *since = 0;
    else *since += 1;
    return *since >= t.patience ? PLATEAU : RUNNING;
}

template <class real>
static count train(const Problem &problem, const Training &t, count width, count per_sample,
                   real *values, real *m, real *v, double *losses, double *best, count *since,
                   count *done) {
    Engine<real> engine(problem, t.order);
    real *gradient = (real *)malloc(width * sizeof(real));
    count n = problem.samples, batch = t.batch < n ? t.batch : n, step = t.epoch * ((n + batch - 1) / batch);
    count outcome = engine.memory && gradient ? RUNNING : NO_MEMORY;
    for (*done = 0; outcome == RUNNING && *done < t.epochs;) {
        double total = 0;
        if (t.order) engine.order = t.order + *done * n;
        for (count from = 0; from < n; from += batch) {
            count some = n - from < batch ? n - from : batch;
            memset(gradient, 0, width * sizeof(real));
            total += engine.gradient(from, some, 1. / (some * per_sample), values, gradient);
            if (batch == n) outcome = judge(t, total / (n * per_sample), best, since);
            if (outcome == RUNNING) update(t, ++step, width, gradient, values, m, v);
        }
        losses[(*done)++] = total / (n * per_sample);
        if (batch < n) outcome = judge(t, total / (n * per_sample), best, since);
    }
    free(gradient);
    return outcome;
}

template <class real>
static count range(const Problem &problem, count from, count n, double scale, const real *values,
                   real *gradient, double *loss) {
    Engine<real> engine(problem, 0);
    if (!engine.memory) return NO_MEMORY;
    *loss = engine.gradient(from, n, scale, values, gradient);
    return RUNNING;
}

#define ENTRY_POINTS(real, name)                                                                    \
    extern "C" count train_##name(const Problem *problem, const Training *training, count width,   \
                                  count per_sample, real *values, real *m, real *v,                 \
                                  double *losses, double *best, count *since, count *done) {        \
        FlushToZero flush;                                                                          \
        return train<real>(*problem, *training, width, per_sample, values, m, v, losses, best,      \
                           since, done);                                                            \
    }                                                                                               \
    extern "C" count range_##name(const Problem *problem, count from, count n, double scale,        \
                                  const real *values, real *gradient, double *loss) {               \
        FlushToZero flush;                                                                          \
        return range<real>(*problem, from, n, scale, values, gradient, loss);                       \
    }                                                                                               \
    extern "C" void update_##name(const Training *training, count step, count width, const real *g, \
                                  real *values, real *m, real *v) {                                 \
        FlushToZero flush;                                                                          \
        update<real>(*training, step, width, g, values, m, v);                                      \
    }

ENTRY_POINTS(float, float32)
ENTRY_POINTS(double, float64)
