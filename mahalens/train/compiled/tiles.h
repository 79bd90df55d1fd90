// Matrix products on panels: a tile of the result lives in registers while one index runs.
//
// A panel holds PANEL samples side by side, [width][PANEL]: every operation of a network is then
// the same instruction on neighbouring samples.
#pragma once
#include <string.h>
#include <type_traits>

typedef long long count;

// Bytes of a vector: what every machine is treated as having, and the widest of this one. Products
// may use either, because each number of theirs is added up by itself, in the same order.
static const int NARROW = 32;
#ifdef __AVX512F__
static const int WIDE = 64;
#else
static const int WIDE = 32;
#endif

template <class real, int BYTES> struct Vector {
    typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
    static const int lanes = BYTES / sizeof(real);
    static vec load(const real *p) { return *(const vec *)p; }
    static void store(real *p, vec v) { *(vec *)p = v; }
};

template <class real> struct Width : Vector<real, NARROW> {
    static const int panel = 2 * Vector<real, NARROW>::lanes;
};

template <class real> static inline typename Width<real>::vec load(const real *p) {
    return Width<real>::load(p);
}

template <class real> static inline void store(real *p, typename Width<real>::vec v) {
    Width<real>::store(p, v);
}

template <class real> static inline real sum_lanes(typename Width<real>::vec v) {
    real total = 0;
    for (int i = 0; i < Width<real>::lanes; i++) total += v[i];
    return total;
}

// Numbers of the first and of the second half of two vectors, by turns.
typedef Width<float>::vec Floats;
typedef Width<double>::vec Doubles;
static inline Floats mix_first(Floats a, Floats b) {
    return (Floats){a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]};
}
static inline Floats mix_second(Floats a, Floats b) {
    return (Floats){a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]};
}
static inline Doubles mix_first(Doubles a, Doubles b) { return (Doubles){a[0], b[0], a[1], b[1]}; }
static inline Doubles mix_second(Doubles a, Doubles b) { return (Doubles){a[2], b[2], a[3], b[3]}; }

// out[c][r] = in[r][c] for a square of as many rows as a vector has lanes. Written in bits, a number's
// place is its row followed by its lane. Mixing two rows half the square apart rotates these bits by one;
// as many rounds as a lane has bits exchange row and lane.
template <class real>
static inline void transpose_square(const real *in, count in_step, real *out, count out_step) {
    typedef typename Width<real>::vec vec;
    const int lanes = Width<real>::lanes;
    vec rows[lanes], mixed[lanes];
    for (int i = 0; i < lanes; i++) rows[i] = load(in + i * in_step);
    for (int left = lanes; left > 1; left /= 2) {
        for (int i = 0; i < lanes / 2; i++) {
            mixed[2 * i] = mix_first(rows[i], rows[i + lanes / 2]);
            mixed[2 * i + 1] = mix_second(rows[i], rows[i + lanes / 2]);
        }
        for (int i = 0; i < lanes; i++) rows[i] = mixed[i];
    }
    for (int i = 0; i < lanes; i++) store(out + i * out_step, rows[i]);
}

// The same for any number of rows and columns.
template <class real>
static inline void transpose(count rows, count columns, const real *in, count in_step, real *out, count out_step) {
    const count lanes = Width<real>::lanes;
    for (count r = 0; r < rows; r += lanes)
        for (count c = 0; c < columns; c += lanes) {
            if (r + lanes <= rows && c + lanes <= columns) {
                transpose_square(in + r * in_step + c, in_step, out + c * out_step + r, out_step);
                continue;
            }
            for (count i = r; i < rows && i < r + lanes; i++)
                for (count j = c; j < columns && j < c + lanes; j++) out[j * out_step + i] = in[i * in_step + j];
        }
}

// out[i][:] = first + sum_d left(i, d) right[d][:] for ROWS rows and VECS vectors of columns.
//
// left(i, d) is left[i * step + d * stride]; d runs through pieces, and from one to the next `left`
// jumps. Rows of `right` are `right_step` apart, and its panels `right_panel`; so with `out`. The sum
// begins with a number per row (START), or with what `out` holds. Narrow vectors are counted: one, or
// two or four that are a panel or two. Six rows of two vectors and their operands just fill 16 registers;
// where there are 32 wide ones, twelve rows of two panels do, and a number of the left serves twice.
struct Shape {
    count pieces, piece, step, stride, jump, right_step, right_panel, out_step, out_panel, start_step;
};
static const int MOST_PANELS = WIDE == 64 ? 2 : 1;

template <class real, int ROWS, int COLUMN_VECS, bool UNIT, bool START>
static inline __attribute__((always_inline)) void
tile(const Shape &shape, const real *left, const real *right, const real *start, real *out) {
    typedef Vector<real, COLUMN_VECS == 1 ? NARROW : WIDE> V;
    typedef typename V::vec vec;
    const int VECS = COLUMN_VECS * NARROW / sizeof(vec);
    const count lanes = V::lanes, right_step = shape.right_step;
    const count step = shape.step, stride = UNIT ? 1 : shape.stride, piece = shape.piece;
    count from[VECS], to[VECS];
    for (int v = 0; v < VECS; v++) {
        const count panels = v * lanes / Width<real>::panel, lane = v * lanes % Width<real>::panel;
        from[v] = panels * shape.right_panel + lane, to[v] = panels * shape.out_panel + lane;
    }
    vec total[ROWS][VECS];
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < VECS; v++)
            total[i][v] = START ? start[i * shape.start_step] - (vec){}
                                : V::load(out + i * shape.out_step + to[v]);
    for (count n = shape.pieces; n > 0; n--, left += shape.jump) {
        const real *at = left;
#pragma GCC unroll 4
        for (count d = piece; d > 0; d--, right += right_step, at += stride) {
            vec column[VECS];
            for (int v = 0; v < VECS; v++) column[v] = V::load(right + from[v]);
            for (int i = 0; i < ROWS; i++)
                for (int v = 0; v < VECS; v++) total[i][v] += at[i * step] * column[v];
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < VECS; v++) V::store(out + i * shape.out_step + to[v], total[i][v]);
}

// The same for any number of rows. Wide vectors leave room for twelve rows, narrow ones for six. Tiles
// of one or two rows would leave most of the processor idle, so the last rows are shared out evenly.
static const int MOST_ROWS = WIDE == 64 ? 12 : 6;

static inline count tile_rows(count left) {
    return left <= MOST_ROWS ? left : left < MOST_ROWS + 3 ? (left + 1) / 2 : MOST_ROWS;
}

template <class real, int VECS, bool UNIT, bool START, int ROWS = MOST_ROWS>
static inline __attribute__((always_inline)) void
tile_of(count rows, const Shape &shape, const real *left, const real *right, const real *start, real *out) {
    if constexpr (ROWS == 1) tile<real, 1, VECS, UNIT, START>(shape, left, right, start, out);
    else if (rows == ROWS) tile<real, ROWS, VECS, UNIT, START>(shape, left, right, start, out);
    else tile_of<real, VECS, UNIT, START, ROWS - 1>(rows, shape, left, right, start, out);
}

template <class real, int VECS, bool UNIT, bool START>
static __attribute__((noinline)) void tiles(count rows, const Shape &shape, const real *left,
                                            const real *right, const real *start, real *out) {
    while (rows > 0) {
        const count some = tile_rows(rows);
        tile_of<real, VECS, UNIT, START>(some, shape, left, right, start, out);
        rows -= some, left += some * shape.step, out += some * shape.out_step;
        if (START) start += some * shape.start_step;
    }
}

// Call `work` with the first of some panels and, as a constant, how many vectors they are.
template <class Work> static inline void by_panels(count panels, Work work) {
    count at = 0;
    if constexpr (MOST_PANELS == 2)
        for (; at + 2 <= panels; at += 2) work(at, std::integral_constant<int, 4>());
    for (; at < panels; at++) work(at, std::integral_constant<int, 2>());
}

// out[p][i][panel] = start_i + sum_d w[i][d] in[p][d][panel]; a row of w is `step` long, and starts are
// `start_step` apart. Without them `out` is added to. Cut so that a piece of the input stays in the first-level cache while all rows pass over it.
template <class real>
static void times_panels(count panels, count rows, count depth, const real *w, count step, const real *in,
                         const real *start, count start_step, real *out) {
    const count panel = Width<real>::panel, most = 256;
    const count pieces = (depth + most - 1) / most, piece = (depth + pieces - 1) / pieces;
    by_panels(panels, [&](count p, auto vecs) {
        const real *x = in + p * panel * depth;
        real *y = out + p * panel * rows;
        for (count d = 0; d < depth; d += piece) {
            const count some = depth - d < piece ? depth - d : piece;
            const Shape shape = {1, some, step, 1, 0, panel, panel * depth, panel, panel * rows, start_step};
            if (start && !d) tiles<real, vecs, true, true>(rows, shape, w, x, start, y);
            else tiles<real, vecs, true, false>(rows, shape, w + d, x + d * panel, start, y);
        }
    });
}

// out[p][d][panel] = sum_k w[k][d] grad[p][k][panel]: the way back.
template <class real>
static void times_panels_back(count panels, count rows, count depth, const real *w, count step,
                              const real *grad, real *out) {
    const count panel = Width<real>::panel;
    memset(out, 0, panels * rows * panel * sizeof(real));
    const Shape shape = {1, depth, 1, step, 0, panel, panel * depth, panel, panel * rows, 0};
    by_panels(panels, [&](count p, auto vecs) {
        tiles<real, vecs, false, false>(rows, shape, w, grad + p * panel * depth, (const real *)0, out + p * panel * rows);
    });
}

// out[k][c] += sum_s grad[k][s] in[s][c]: the gradient of a weight over a block of samples.
// `grad` is in panels. Each PANEL columns of `in` begin `strip` after the last, and rows are
// `in_step` apart: so it can be in strips, or be the samples as they came.
template <class real>
static void add_outer(count units, count columns, count samples, const real *grad, const real *in,
                      count strip, count in_step, real *out, count out_step) {
    const count lanes = Width<real>::lanes, panel = Width<real>::panel, jump = units * panel;
    const count whole = samples / panel, left_over = samples % panel;
    const count full = columns / panel + (columns % panel > lanes);  // panels of columns; half a one may be left
    const real *none = 0;
    for (int rest = 0; rest < 2; rest++) {
        const Shape shape = {rest ? 1 : whole, rest ? left_over : panel, panel, 1, jump, in_step, strip, out_step, panel, 0};
        const real *left = grad + rest * whole * jump, *right = in + rest * whole * panel * in_step;
        by_panels(full, [&](count p, auto vecs) {
            tiles<real, vecs, true, false>(units, shape, left, right + p * strip, none, out + p * panel);
        });
        if (full * panel < columns)
            tiles<real, 1, true, false>(units, shape, left, right + full * strip, none, out + full * panel);
    }
}

// The same for few columns, where whole vectors of them would be mostly padding: here vectors run
// along the samples, and `input` is in panels too. Columns of `out` are `out_step` wide.
template <class real, int COLUMNS>
static void add_dots(count units, count samples, const real *grad, const real *input, real *out,
                     count out_step) {
    typedef typename Width<real>::vec vec;
    const count lanes = Width<real>::lanes, panel = Width<real>::panel;
    for (count k = 0; k < units; k++) {
        vec total[COLUMNS][2] = {};
        for (count s = 0; s < samples; s += panel)
            for (int half = 0; half < 2; half++) {
                vec g = load(grad + s * units + k * panel + half * lanes);
                for (int c = 0; c < COLUMNS; c++)
                    total[c][half] += g * load(input + s * COLUMNS + c * panel + half * lanes);
            }
        for (int c = 0; c < COLUMNS; c++)
            out[k * out_step + c] += sum_lanes<real>(total[c][0] + total[c][1]);
    }
}
