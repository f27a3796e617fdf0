# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1's exp, log and tanh as polynomials that LLVM vectorises, in single and double precision.

A call of `np.exp` inside a compiled loop is scalar. These are branch-free instead: each precision has its own polynomial,
accurate to a few units in the last place over the whole range, and NaN and infinity come out as torch has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
"""Contraction to multiply-add changes rounding only; NaN, infinity and the sign of zero keep their meaning."""

INLINED = {**OPTIONS, "forceinline": True}
"""For functions called inside a loop: a call that LLVM does not inline would keep the loop from being vectorised."""

F = np.float32
I = np.int32  # noqa: E741
D = np.float64
L = np.int64


@intrinsic
def constant(typing_context, x, value):
    """Return `value` in the precision of x. A bare literal would raise single precision to double."""

    def convert(context, builder, signature, arguments):
        return context.cast(builder, arguments[1], signature.args[1], signature.args[0])

    return x(x, value), convert


def _view_as(single, double):
    """Return a function for compiled code: the number of the type of the same width that has the bits of x."""

    @intrinsic
    def view(typing_context, x):
        kind = single if x.bitwidth == 32 else double

        def cast(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(kind))

        return kind(x), cast

    return view


_bits = _view_as(types.int32, types.int64)
_number = _view_as(types.float32, types.float64)


def _choose_by_precision(single, double):
    """Return a function of one number for compiled code, which has a body for each precision."""

    def function(x: Any) -> Any:
        raise NotImplementedError

    overload(function, jit_options=OPTIONS)(lambda x: single if x in (types.float32, types.int32) else double)
    return function


def _to_rank32(x):
    bits = _bits(x)
    return I(bits ^ I(I(bits >> I(31)) & I(0x7FFFFFFF)))


def _to_rank64(x):
    bits = _bits(x)
    return bits ^ ((bits >> L(63)) & L(0x7FFFFFFFFFFFFFFF))


def _from_rank32(x):
    return _number(I(x ^ I(I(x >> I(31)) & I(0x7FFFFFFF))))


def _from_rank64(x):
    return _number(x ^ ((x >> L(63)) & L(0x7FFFFFFFFFFFFFFF)))


to_rank = _choose_by_precision(_to_rank32, _to_rank64)
"""Return an integer that grows with x, NaN outermost: LLVM vectorises the maximum of integers, not that of floats."""
from_rank = _choose_by_precision(_from_rank32, _from_rank64)
"""Return the number with that rank."""


def _exp32(x):
    x = F(89.0) if x > F(89.0) else x
    # 2^n in two factors, of which the second is exact, so that denormal results are rounded once.
    negative = x < F(0.0)
    bias = I(127 + 32 - 0x4B400000) if negative else I(127 - 32 - 0x4B400000)
    return _scaled_exp32(x, bias, F(2.0**-32) if negative else F(2.0**32))


def _decay32(x):
    return _scaled_exp32(x, I(127 + 32 - 0x4B400000), F(2.0**-32))


@njit(**OPTIONS)
def _scaled_exp32(x, bias, rest):
    x = F(-104.0) if x < F(-104.0) else x
    # Adding 1.5·2²³ rounds to an integer, which then stands in the low bits.
    shifted = x * F(1.44269504088896341) + F(12582912.0)
    whole = shifted - F(12582912.0)
    r = x - whole * F(0.693359375)
    r = r + whole * F(2.12194440e-4)
    q = ((F(1.9875691500e-4) * r + F(1.3981999507e-3)) * r + F(8.3334519073e-3)) * r + F(4.1665795894e-2)
    q = (q * r + F(1.6666665459e-1)) * r + F(5.0000001201e-1)
    q = q * (r * r) + (r + F(1.0))
    return q * _number(I((_bits(shifted) + bias) << I(23))) * rest


def _exp64(x):
    x = D(710.0) if x > D(710.0) else x
    x = D(-746.0) if x < D(-746.0) else x
    shifted = x * D(1.4426950408889634074) + D(6755399441055744.0)
    whole = shifted - D(6755399441055744.0)
    r = x - whole * D(6.93145751953125e-1)
    r = r - whole * D(1.42860682030941723212e-6)
    q = (((D(1.0 / 6227020800.0)) * r + D(1.0 / 479001600.0)) * r + D(1.0 / 39916800.0)) * r + D(1.0 / 3628800.0)
    q = (((q * r + D(1.0 / 362880.0)) * r + D(1.0 / 40320.0)) * r + D(1.0 / 5040.0)) * r + D(1.0 / 720.0)
    q = (((q * r + D(1.0 / 120.0)) * r + D(1.0 / 24.0)) * r + D(1.0 / 6.0)) * r + D(0.5)
    q = q * (r * r) + (r + D(1.0))
    negative = x < D(0.0)
    bias = L(1023 + 64 - 0x4338000000000000) if negative else L(1023 - 64 - 0x4338000000000000)
    rest = D(2.0**-64) if negative else D(2.0**64)
    return q * _number(L((_bits(shifted) + bias) << L(52))) * rest


exponential = _choose_by_precision(_exp32, _exp64)
"""Return e^x; 0 below the smallest denormal number, infinity above the largest."""
decay = _choose_by_precision(_decay32, _exp64)
"""Return e^x, bit for bit that of `exponential`, of an x that is not positive, or NaN."""


def _log32(x):
    bits = _bits(x)
    # The exponent counts from the square root of a half, so that the mantissa lies around 1.
    # Every integer is cast back to 32 bits: numba computes in 64, which AVX2 can neither shift nor convert in vectors.
    exponent = I(I(bits - I(0x3F3504F3)) >> I(23))
    e = F(exponent)
    m = _number(I(bits - I(exponent << I(23)))) - F(1.0)
    q = ((F(7.0376836292e-2) * m + F(-1.1514610310e-1)) * m + F(1.1676998740e-1)) * m + F(-1.2420140846e-1)
    q = (((q * m + F(1.4249322787e-1)) * m + F(-1.6668057665e-1)) * m + F(2.0000714765e-1)) * m + F(-2.4999993993e-1)
    q = q * m + F(3.3333331174e-1)
    square = m * m
    q = q * m * square + e * F(-2.12194440e-4)
    q = q - F(0.5) * square
    result = (m + q) + e * F(0.693359375)
    return result if x < F(np.inf) else x


def _log64(x):
    bits = _bits(x)
    exponent = (bits - L(0x3FE6A09E667F3BCD)) >> L(52)
    e = D(exponent)
    m = _number(L(bits - (exponent << L(52)))) - D(1.0)
    s = m / (m + D(2.0))
    square = s * s
    q = (((D(2.0 / 23.0)) * square + D(2.0 / 21.0)) * square + D(2.0 / 19.0)) * square + D(2.0 / 17.0)
    q = (((q * square + D(2.0 / 15.0)) * square + D(2.0 / 13.0)) * square + D(2.0 / 11.0)) * square + D(2.0 / 9.0)
    q = ((q * square + D(2.0 / 7.0)) * square + D(2.0 / 5.0)) * square + D(2.0 / 3.0)
    result = D(2.0) * s + (q * square * s + e * D(1.42860682030941723212e-6)) + e * D(6.93145751953125e-1)
    return result if x < D(np.inf) else x


logarithm = _choose_by_precision(_log32, _log64)
"""Return the logarithm of a normal positive x, of infinity, or of NaN."""


def _tanh32(x):
    size = abs(x)
    square = x * x
    q = (F(-5.70498872745e-3) * square + F(2.06390887954e-2)) * square + F(-5.37397155531e-2)
    q = (q * square + F(1.33314422036e-1)) * square + F(-3.33332819422e-1)
    near = q * square * x + x
    far = F(1.0) - F(2.0) / (exponential(size + size) + F(1.0))
    return near if size < F(0.625) else (-far if x < F(0.0) else far)


def _tanh64(x):
    size = abs(x)
    square = x * x
    above = D(-9.64399179425052238628e-1)
    above = above * square + D(-9.92877231001918586564e1)
    above = above * square + D(-1.61468768441708447952e3)
    below = square + D(1.12811678491632931402e2)
    below = below * square + D(2.23548839060100448583e3)
    below = below * square + D(4.84406305325125486048e3)
    near = x * square * (above / below) + x
    far = D(1.0) - D(2.0) / (exponential(size + size) + D(1.0))
    return near if size < D(0.625) else (-far if x < D(0.0) else far)


hyperbolic_tangent = _choose_by_precision(_tanh32, _tanh64)
"""Return tanh x; exactly ±1 where that is the nearest number."""
