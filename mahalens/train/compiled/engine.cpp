// One trial's loss and gradient, and whole epochs of training, without leaving the cache.
//
// Samples pass through the network a panel at a time; gradients of weights are taken over a block
// of panels, where the sums are long enough to stay in registers. Nothing of size N x K is made.
// One call works on one trial in one thread: results do not depend on how many threads there are.
#include "losses.h"
#include "memory.h"
#include "sparse.h"

enum Loss { MEAN_SQUARE, CROSS_ENTROPY };
enum Outcome { RUNNING, NON_FINITE, REACHED, PLATEAU, NO_MEMORY };

// Samples come as rows, from which panels and strips are packed block by block, or packed already.
struct Problem {
    const Layer *layers;
    count depth, loss, block, samples;
    const void *rows;           // [N][D]
    const void *panels;         // [N / PANEL][D][PANEL], the last one filled up with zeros; or null
    const void *strips;         // [D / PANEL][N][PANEL], the last one filled up with zeros; or null
                                // if `rows` serve as well, where D is a multiple of PANEL
    const void *targets;        // numbers [N][K], or labels [N] as 64-bit integers
    const void *target_panels;  // numbers as [N / PANEL][K][PANEL]; or null
    const Sparse *sparse;       // samples for a first layer that is Linear, in place of panels and strips; or null
};

struct Training {
    count adam, batch, epoch, epochs, patience;
    double lr, momentum, beta2, eps, target, gain;
    const count *order;       // [epochs][N], or null: rows as they come
};

static inline count padded(count n, count unit) { return (n + unit - 1) / unit * unit; }

template <class real> struct Engine {
    static const count panel = Width<real>::panel, lanes = Width<real>::lanes;
    static const count narrow = 4;  // up to here vectors run along samples in a weight's gradient

    const Problem &problem;
    const Layer *layers;
    count depth, first, block, group;
    const count *order;
    char *memory;
    // Per layer: its output for one group; the gradient of that (where affine: for a whole block);
    // and where affine what it was given, and the gradient of its weight with padded rows. Of a
    // PointSlope also the numbers it starts from, and the sums of the gradient of its output; of an
    // OffsetL2 the sums that the gradients of its parameters are made of.
    real **outputs, **grads, **inputs, **weights, **starts, **sums;
    real *panels, *strips, *goals;
    SparseLayer<real> sparse;

    Engine(const Problem &p, const count *o) : problem(p), layers(p.layers), depth(p.depth), order(o) {
        block = padded(p.block, panel);
        first = 0;
        while (first < depth && !affine(layers[first]) && layers[first].kind < OFFSET_L2) first++;
        // As many panels go through a layer together as fit in the first-level cache: their chains of
        // operations are independent, and the processor works on several at once.
        count widest = p.sparse ? 1 : layers[0].inputs;
        for (count l = 0; l < depth; l++)
            if (layers[l].outputs > widest) widest = layers[l].outputs;
        group = (count)(12288 / sizeof(real)) / widest / panel * panel;
        count least = MOST_PANELS * panel;  // at least what goes through a layer together
        for (count l = 0; l < depth; l++)
            if (offset_l2_sums(layers[l])) least = OFFSET_L2_PANELS * panel;
        group = group < least ? least : group;
        group = group > block ? block : group;
        memory = thread_memory().take(lay(0));
        if (memory) lay(memory);
    }
    ~Engine() { thread_memory().give_back(); }

    // Deal out the working memory; with base 0 only its size is counted.
    size_t lay(char *base) {
        size_t used = 0;
        auto take = [&](count n, size_t item) {
            char *at = base + used;
            used += padded(n * item, 64);
            return at;
        };
        real **lists[6];
        for (auto &list : lists) list = (real **)take(depth, sizeof(real *));
        for (count l = 0; l < depth; l++) {
            const Layer &layer = layers[l];
            real *mine[6] = {};
            mine[0] = (real *)take(layer.outputs * group, sizeof(real));
            mine[1] = (real *)take(layer.outputs * (affine(layer) ? block : group), sizeof(real));
            const bool gathers = problem.sparse && !l;
            if (affine(layer) && !gathers) {
                count wide = padded(layer.inputs, panel);
                mine[2] = (real *)take(l ? block * wide : 0, sizeof(real));
                mine[3] = (real *)take(layer.outputs * wide, sizeof(real));
            }
            if (layer.kind == POINT_SLOPE || gathers)
                for (int i = 4; i < 6; i++) mine[i] = (real *)take(layer.outputs, sizeof(real));
            if (offset_l2_sums(layer)) mine[5] = (real *)take(offset_l2_sums(layer), sizeof(real));
            if (base)
                for (int i = 0; i < 6; i++) lists[i][l] = mine[i];
        }
        sparse.data = problem.sparse;
        if (problem.sparse) sparse.lay(layers[0], block, take);
        count packed = problem.panels || problem.sparse ? 0 : block;
        panels = (real *)take(packed * layers[0].inputs, sizeof(real));
        strips = (real *)take(packed * padded(layers[0].inputs, panel), sizeof(real));
        goals = (real *)take(layers[depth - 1].outputs * panel, sizeof(real));
        outputs = lists[0], grads = lists[1], inputs = lists[2], weights = lists[3];
        starts = lists[4], sums = lists[5];
        return used;
    }

    // How many numbers an OffsetL2 sums: two panels for each of its prototypes and inputs.
    static count offset_l2_sums(const Layer &layer) {
        const bool one = layer.kind == OFFSET_L2 || layer.kind == OFFSET_L2_CODE;
        return one ? 2 * panel * layer.inputs * layer.outputs : 0;
    }

    count row(count place) const { return order ? order[place] : place; }

    // Sum of the losses of samples [from, from + n); adds the gradient of scale times that sum.
    double gradient(count from, count n, double scale, const real *values, real *gradient) {
        for (count l = first; l < depth; l++) {
            const Layer &layer = layers[l];
            const count own = offset_l2_sums(layer);
            if (sums[l]) memset(sums[l], 0, (own ? own : layer.outputs) * sizeof(real));
            if (weights[l]) memset(weights[l], 0, layer.outputs * padded(layer.inputs, panel) * sizeof(real));
            if (layer.kind == POINT_SLOPE) point_slope_starts(layer, values, starts[l]);
            if (!l && problem.sparse) sparse.begin(layer, values);
        }
        double total = 0;
        for (count b = 0; b < n; b += block) {
            count some = n - b < block ? n - b : block;
            const real *in_panels = (const real *)problem.panels + (from + b) * layers[0].inputs;
            const real *in_strips = problem.strips ? (const real *)problem.strips + (from + b) * panel
                                                   : (const real *)problem.rows + (from + b) * layers[0].inputs;
            if (!problem.panels && !problem.sparse) {
                pack(from + b, some);
                in_panels = panels, in_strips = strips;
            }
            if (problem.sparse) sparse.enter((from + b) / block, some);
            for (count place = 0; place < some; place += group) {
                count live = some - place < group ? some - place : group, filled = padded(live, panel);
                const real *x = in_panels + place * layers[0].inputs;
                forward(x, place, filled, values);
                for (count p = 0; p < live; p += panel)
                    total += loss(from + b + place + p, live - p, scale, p, place);
                if (gradient) backward(x, filled, place, values);
            }
            if (gradient) add_block(from + b, some, in_panels, in_strips, gradient);
        }
        if (gradient) add_weights(values, gradient);
        return total;
    }

    void pack(count from, count n) {
        const count width = layers[0].inputs, full = padded(n, panel);
        for (count s = 0; s < full; s++) {
            const real *in = (const real *)problem.rows + (s < n ? row(from + s) * width : 0);
            real *out = panels + s / panel * panel * width + s % panel;
            for (count d = 0; d < width; d++) out[d * panel] = s < n ? in[d] : 0;
            for (count d = 0; d < padded(width, panel); d++)
                strips[(d / panel * block + s) * panel + d % panel] = s < n && d < width ? in[d] : 0;
        }
    }

    // The outputs of all layers for n samples of a block from `at` on, a whole number of panels.
    void forward(const real *x, count at, count n, const real *values) {
        for (count p = 0; problem.sparse && p < n; p += panel)
            sparse.forward(at + p, outputs[0] + p * layers[0].outputs);
        for (count l = problem.sparse ? 1 : 0; l < depth; l++) {
            const Layer &layer = layers[l];
            const real *in = l ? outputs[l - 1] : x;
            real *out = outputs[l];
            const bool points = layer.kind == POINT_SLOPE;
            count step = layer.inputs + layer.bias;
            const real *w = values + layer.offset, *start = layer.bias ? w + layer.inputs : starts[l];
            if (layer.kind >= ABS && layer.kind <= NEG) {
                activate(layer, n, in, out);
                continue;
            }
            if (affine(layer)) {
                if (!start) memset(out, 0, layer.outputs * n * sizeof(real));
                times_panels(n / panel, layer.outputs, layer.inputs, w, step, in, start, points ? 1 : step, out);
                continue;
            }
            for (count p = 0; p < n; p += panel, in += panel * layer.inputs, out += panel * layer.outputs) {
                if (layer.kind == NORM) norm(layer.inputs, in, out);
                else offset_l2(layer, values, in, out);
            }
        }
    }

    // Where the gradient of layer l's output is kept. Elementwise layers work in place, so it is
    // that of the nearest layer below them that is not; if affine it stays until the block ends.
    real *slope(count l, count place) {
        while (l > first && layers[l].kind >= ABS && layers[l].kind <= NEG) l--;
        return grads[l] + (affine(layers[l]) ? place * layers[l].outputs : 0);
    }

    // Loss of the panel p of a group; its slope becomes scale times its gradient, and 0 for the
    // samples filled up.
    double loss(count from, count live, double scale, count p, count place) {
        count width = layers[depth - 1].outputs;
        const real *out = outputs[depth - 1] + p * width;
        real *g = slope(depth - 1, place) + p * width;
        live = live < panel ? live : panel;
        if (problem.loss == CROSS_ENTROPY) {
            count labels[panel];
            for (count s = 0; s < live; s++) labels[s] = ((const count *)problem.targets)[row(from + s)];
            return cross_entropy(live, scale, width, out, labels, g);
        }
        const real *goal = (const real *)problem.target_panels + from * width;
        if (!problem.target_panels) {
            const real *targets = (const real *)problem.targets;
            for (count s = 0; s < live; s++)
                for (count k = 0; k < width; k++) goals[k * panel + s] = targets[row(from + s) * width + k];
            goal = goals;
        }
        return squares(live, scale, width, out, goal, g);
    }

    // From the gradient of the output to what the gradients of the weights are made of.
    void backward(const real *x, count n, count place, const real *values) {
        for (count l = depth - 1; l >= first; l--) {
            const Layer &layer = layers[l];
            const real *in = l ? outputs[l - 1] : x, *out = outputs[l];
            real *g = slope(l, place), *down = l > first ? slope(l - 1, place) : 0;
            if (layer.kind >= ABS && layer.kind <= NEG) {
                activate_back(layer, n, in, out, g);
                continue;
            }
            if (affine(layer) && l) keep(inputs[l], place, n, layer.inputs, in);
            if (affine(layer)) {
                if (down)
                    times_panels_back(n / panel, layer.inputs, layer.outputs, values + layer.offset,
                                      layer.inputs + layer.bias, g, down);
                continue;
            }
            if (layer.kind != NORM) {
                offset_l2_back(layer, n, values, in, out, g, down, sums[l]);
                continue;
            }
            for (count p = 0; p < n; p += panel) {
                norm_back(layer.inputs, in, out, g, down);
                in += panel * layer.inputs, out += panel, g += panel, down += panel * layer.inputs;
            }
        }
    }

    // Keep a hidden layer's input for the end of the block: in strips, or as it is where narrow.
    void keep(real *to, count place, count n, count width, const real *in) {
        if (width <= narrow) {
            memcpy(to + place * width, in, width * n * sizeof(real));
            return;
        }
        for (count d = 0; d < width; d += panel)
            for (count p = 0; p < n; p += panel) {
                real *out = to + (d / panel * block + place + p) * panel;
                const real *part = in + p * width + d * panel;
                count some = width - d < panel ? width - d : panel;
                transpose(some, panel, part, panel, out, panel);
                for (count s = 0; s < panel; s++)
                    for (count c = some; c < panel; c++) out[s * panel + c] = 0;
            }
    }

    void add_block(count at, count n, const real *in_panels, const real *in_strips, real *gradient) {
        for (count l = first; l < depth; l++) {
            const Layer &layer = layers[l];
            if (!affine(layer)) continue;
            count wide = padded(layer.inputs, panel), step = layer.inputs + layer.bias;
            const real *across = l ? inputs[l] : in_panels, *along = l ? inputs[l] : in_strips;
            count strip = (l || !problem.panels ? block : padded(problem.samples, panel)) * panel;
            count in_step = panel;
            if (!l && problem.panels && !problem.strips) strip = panel, in_step = layer.inputs;
            const bool gathers = problem.sparse && !l;
            if (gathers) sparse.add(at / block, n, grads[l]);
            else switch (layer.inputs) {
            case 1: add_dots<real, 1>(layer.outputs, n, grads[l], across, weights[l], wide); break;
            case 2: add_dots<real, 2>(layer.outputs, n, grads[l], across, weights[l], wide); break;
            case 3: add_dots<real, 3>(layer.outputs, n, grads[l], across, weights[l], wide); break;
            case 4: add_dots<real, 4>(layer.outputs, n, grads[l], across, weights[l], wide); break;
            default: add_outer(layer.outputs, layer.inputs, n, grads[l], along, strip, in_step, weights[l], wide);
            }
            for (count k = 0; (layer.bias || sums[l]) && k < layer.outputs; k++) {
                typename Width<real>::vec sum = {};
                for (count s = 0; s < n; s += panel)
                    for (count half = 0; half < panel; half += lanes)
                        sum += load(grads[l] + s * layer.outputs + k * panel + half);
                const real found = sum_lanes<real>(sum);
                if (sums[l]) sums[l][k] += found;
                if (layer.bias) gradient[layer.offset + k * step + layer.inputs] += found;
            }
        }
    }

    void add_weights(const real *values, real *gradient) {
        for (count l = first; l < depth; l++) {
            const Layer &layer = layers[l];
            if (offset_l2_sums(layer)) offset_l2_end(layer, values, sums[l], gradient);
            if (!affine(layer)) continue;
            if (layer.kind == POINT_SLOPE) point_slope_back(layer, values, sums[l], gradient);
            if (!l && problem.sparse) {
                sparse.end(layer, sums[l], gradient);
                continue;
            }
            count wide = padded(layer.inputs, panel), step = layer.inputs + layer.bias;
            for (count k = 0; k < layer.outputs; k++)
                for (count d = 0; d < layer.inputs; d++)
                    gradient[layer.offset + k * step + d] += weights[l][k * wide + d];
        }
    }
};
