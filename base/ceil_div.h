#pragma once

namespace kvlab {

// a / b rounded up, a >= 0, b > 0.
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

template <class A, class B>
constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

}  // namespace kvlab
