#pragma once

namespace kvlab {

// a / b rounded up, for a >= 0 and b > 0, in the type that a + b has.
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// The multiple of b at or above a.
template <class A, class B>
constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

}  // namespace kvlab
