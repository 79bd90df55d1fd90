// Functions of one number that loops can be made vector instructions of.
#pragma once
#include <string.h>

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
#pragma GCC unroll 17
    for (int k = Exp<real>::log_terms - 1; k >= 0; k--) sum = sum * square + 1 / (real)(2 * k + 1);
    return 2 * s * sum;
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): nothing overflows. As in PyTorch, x itself above 20.
template <class real> static inline real softplus_(real x) {
    real down = x < 0 ? x : -x, rest = down < Exp<real>::low ? 0 : log1p_(exp_(down));
    return x > 20 ? x : (x < 0 ? 0 : x) + rest;
}

// A polynomial with coefficients Table::at, from the constant one on, written out by the compiler.
template <class Table, int k, class real> static inline real polynomial(real s, real sum = 0) {
    if constexpr (k < 0) return sum;
    else return polynomial<Table, k - 1>(s, sum * s + Table::at[k]);
}

// e^(z²) erfc(z) / t with t = 3 / (3 + z), for z >= 0, in powers of 2 t - 1: interpolated where
// Chebyshev's polynomial is 0, so that erfc(z) is exact to 3e-8 (float) and 2e-16 (double).
template <class real> struct Tail;
template <> struct Tail<float> {
    static constexpr float at[] = {
        0.35800235f, 0.294464804f, 0.196740396f, 0.103489792f, 0.0398620355f, 0.00893669325f,
        -0.000460680726f, -0.000994821514f, -0.000112544195f, 7.19478818e-5f};
};
template <> struct Tail<double> {
    static constexpr double at[] = {
        0.358002302362779887, 0.29446481772329441, 0.196742785701370476, 0.1034890873002225,
        0.0398425870956309331, 0.00894241154015703807, -0.000404138873528198431,
        -0.00101135397965330403, -0.000182769916653513253, 0.0000922591174808680901,
        0.0000358539312302901542, -0.0000101319618542035637, -5.82387043689706757e-6,
        1.58090248461526376e-6, 9.22592603364722571e-7, -3.28995959794077327e-7,
        -1.37224528588701361e-7, 7.32148845182921337e-8, 1.66395505203807924e-8,
        -1.35299813245911169e-8, -1.18005890594482417e-9, 1.41096541871044403e-9};
};

// The normal distribution function at x; `bell` becomes e^(-x²/2).
template <class real> static inline real normal_cdf(real x, real &bell) {
    const int degree = sizeof(Tail<real>::at) / sizeof(real) - 1;
    real size = (x < 0 ? -x : x) * (real)0.7071067811865476, t = 3 / (3 + size);
    bell = exp_((real)-0.5 * x * x);
    real beyond = (real)0.5 * bell * t * polynomial<Tail<real>, degree>(2 * t - 1);
    return x < 0 ? beyond : 1 - beyond;
}

template <class real> static inline real gelu_(real x) {
    real bell;
    return x * normal_cdf(x, bell);
}
