// A first layer on samples that are mostly background: only what differs from it is multiplied.
//
// With x = background + x', W x + b = W x' + (b + W background), and the gradient of W is
// sum_s g x'^T + (sum_s g) background^T. What is left of x' is kept twice: for the way forward two
// neighbouring samples share a list of columns, for the way back two neighbouring columns share a
// list of samples of a block. Both products are then the same: two rows of a result in registers,
// to which rows of a matrix are added that a list names. Vectors run along units.
#pragma once
#include "layers.h"

struct Sparse {
    const void *background;        // [D]
    const count *column_starts;    // [N / block][parts][block / FEW] and 1: where the list of each
                                   // two samples begins, for each part of the columns
    const int *columns;            // counted from the beginning of the part
    const void *column_numbers;    // [entries][FEW]: x' of the two samples in that column
    const count *sample_starts;    // [N / block][D / FEW] and 1: where that of each two columns begins
    const int *samples;            // counted from the beginning of the block
    const void *sample_numbers;    // [entries][FEW]: x' of that sample in the two columns
    count parts, part;             // of the columns: how many, and columns in each
};

// Two rows of four vectors are summed in registers, enough to keep both multipliers busy. More rows
// would share longer lists, in which more numbers are 0.
static const int FEW = 2, MOST_VECS = 4;

// Lists come from memory, and are asked for so many entries early. The processor's own guesses come too late.
static const count AHEAD = 256;

// out[i][:] = first[i][:] + sum_e numbers[e][i] rows[index[e]][:] for FEW rows of VECS vectors.
template <class real, int VECS>
static __attribute__((noinline)) void
gathered(count entries, const int *index, const real *numbers, const real *rows, const real *first,
         count first_step, real *out) {
    typedef Vector<real, WIDE> V;
    typedef typename V::vec vec;
    const count lanes = V::lanes, width = VECS * lanes;
    vec total[FEW][VECS];
    for (int i = 0; i < FEW; i++)
        for (int v = 0; v < VECS; v++) total[i][v] = V::load(first + i * first_step + v * lanes);
#pragma GCC unroll 2
    for (count e = 0; e < entries; e++, numbers += FEW) {
        __builtin_prefetch(index + e + AHEAD);
        __builtin_prefetch(numbers + FEW * AHEAD);
        const real *row = rows + index[e] * width;
        vec part[VECS];
        for (int v = 0; v < VECS; v++) part[v] = V::load(row + v * lanes);
        for (int i = 0; i < FEW; i++)
            for (int v = 0; v < VECS; v++) total[i][v] += numbers[i] * part[v];
    }
    for (int i = 0; i < FEW; i++)
        for (int v = 0; v < VECS; v++) V::store(out + i * width + v * lanes, total[i][v]);
}

template <class real>
static void gather(count vecs, count entries, const int *index, const real *numbers,
                   const real *rows, const real *first, count first_step, real *out) {
    switch (vecs) {
    case 4: gathered<real, 4>(entries, index, numbers, rows, first, first_step, out); break;
    case 3: gathered<real, 3>(entries, index, numbers, rows, first, first_step, out); break;
    case 2: gathered<real, 2>(entries, index, numbers, rows, first, first_step, out); break;
    default: gathered<real, 1>(entries, index, numbers, rows, first, first_step, out);
    }
}

// Units are cut into tiles of MOST_VECS vectors; where that would leave a single one, of one less.
static inline count tile_vecs(count left) {
    return left == MOST_VECS + 1 ? MOST_VECS - 1 : left < MOST_VECS ? left : MOST_VECS;
}

template <class real> struct SparseLayer {
    static const count panel = Width<real>::panel, lanes = Vector<real, WIDE>::lanes;
    const Sparse *data;
    count units, width, vecs, block;
    real *weight;    // [tile][D][units of the tile], as are all that follow
    real *gradient;  // [tile][D][...] of the weight
    real *slopes;    // [tile][block][...]: the output, later its gradient
    real *starts;    // [tile][...]: b + W background

    template <class Take> void lay(const Layer &layer, count samples, Take take) {
        units = layer.outputs, width = (layer.inputs + FEW - 1) / FEW * FEW, block = samples;
        vecs = (units + lanes - 1) / lanes;
        weight = (real *)take(vecs * lanes * width, sizeof(real));
        gradient = (real *)take(vecs * lanes * width, sizeof(real));
        slopes = (real *)take(vecs * lanes * block, sizeof(real));
        starts = (real *)take(vecs * lanes, sizeof(real));
    }

    // Take in the weight of a trial, and begin its gradient with 0.
    void begin(const Layer &layer, const real *values) {
        const real *w = values + layer.offset, *background = (const real *)data->background;
        const count inputs = layer.inputs, step = inputs + layer.bias;
        memset(gradient, 0, vecs * lanes * width * sizeof(real));
        for (count first = 0, some; first < vecs; first += some) {
            some = tile_vecs(vecs - first);
            const count wide = some * lanes, left = units - first * lanes, live = left < wide ? left : wide;
            const real *rows = w + first * lanes * step;
            real *to = weight + first * lanes * width, *start = starts + first * lanes;
            transpose(live, inputs, rows, step, to, wide);
            for (count u = 0; u < wide; u++) start[u] = layer.bias && u < live ? rows[u * step + inputs] : 0;
            for (count d = 0; d < inputs; d++, to += wide) {
                for (count u = live; u < wide; u++) to[u] = 0;
                for (count u = 0; u < wide; u++) start[u] += to[u] * background[d];
            }
        }
    }

    // Compute the outputs of block `number` of n samples, in the place of their slopes. Columns pass in
    // parts, whose weights stay in the first-level cache while all samples pass over them.
    void enter(count number, count n) {
        const count pairs = (n + panel - 1) / panel * panel / FEW;
        const count *begins = data->column_starts + number * data->parts * (block / FEW);
        for (count first = 0, some; first < vecs; first += some) {
            some = tile_vecs(vecs - first);
            const count wide = some * lanes;
            const count *begin = begins;
            for (count part = 0; part < data->parts; part++) {
                const real *w = weight + first * lanes * width + part * data->part * wide;
                real *out = slopes + first * lanes * block;
                for (count pair = 0; pair < pairs; pair++, begin++, out += FEW * wide)
                    gather(some, begin[1] - *begin, data->columns + *begin,
                           (const real *)data->column_numbers + *begin * FEW, w,
                           part ? out : starts + first * lanes, part ? wide : 0, out);
            }
        }
    }

    // The outputs of the panel that begins at sample `at` of the block, as [unit][PANEL].
    void forward(count at, real *out) {
        for (count first = 0, some; first < vecs; first += some) {
            some = tile_vecs(vecs - first);
            const count wide = some * lanes, left = units - first * lanes;
            const real *rows = slopes + first * lanes * block + at * wide;
            transpose(panel, left < wide ? left : wide, rows, wide, out + first * lanes * panel, panel);
        }
    }

    // Add the gradient of a block of n samples, given that of the output in panels.
    void add(count number, count n, const real *grad) {
        const count strips = width / FEW;
        const count *begins = data->sample_starts + number * strips;
        for (count first = 0, some; first < vecs; first += some) {
            some = tile_vecs(vecs - first);
            const count wide = some * lanes, left = units - first * lanes;
            real *slope = slopes + first * lanes * block, *out = gradient + first * lanes * width;
            for (count p = 0; p < n; p += panel) {
                const count live = left < wide ? left : wide;
                transpose(live, panel, grad + p * units + first * lanes * panel, panel, slope + p * wide, wide);
                for (count s = p; s < p + panel; s++)
                    for (count u = live; u < wide; u++) slope[s * wide + u] = 0;
            }
            for (count strip = 0; strip < strips; strip++, out += FEW * wide) {
                const count from = begins[strip];
                gather(some, begins[strip + 1] - from, data->samples + from,
                       (const real *)data->sample_numbers + from * FEW, slope, out, wide, out);
            }
        }
    }

    // Add what was gathered to a trial's gradient, `sums` being that of the bias.
    void end(const Layer &layer, const real *sums, real *to) const {
        const real *background = (const real *)data->background;
        for (count first = 0, some; first < vecs; first += some) {
            some = tile_vecs(vecs - first);
            const count wide = some * lanes, left = units - first * lanes, live = left < wide ? left : wide;
            const real *from = gradient + first * lanes * width;
            real columns[MOST_VECS * lanes * panel];  // [unit][PANEL]
            for (count d = 0; d < layer.inputs; d += panel) {
                const count few = layer.inputs - d < panel ? layer.inputs - d : panel;
                transpose(few, live, from + d * wide, wide, columns, panel);
                for (count u = 0; u < live; u++) {
                    const count k = first * lanes + u;
                    real *row = to + layer.offset + k * (layer.inputs + layer.bias) + d;
                    for (count c = 0; c < few; c++) row[c] += columns[u * panel + c] + sums[k] * background[d + c];
                }
            }
        }
    }
};
