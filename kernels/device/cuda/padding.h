#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace kvlab {

// True in the emulator: uploads have zero padding, so processes write the same bytes.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
constexpr bool kClearsPadding = true;
template <class T>
void clear_padding(T& object) {
  if constexpr (std::is_class_v<T>) __builtin_clear_padding(&object);
}
#else
constexpr bool kClearsPadding = false;
template <class T>
void clear_padding(T&) {}
#endif

// f(copy with cleared padding), or f(objects).
template <class T, class F>
void without_padding(const T* objects, std::int64_t n, F&& f) {
  if constexpr (kClearsPadding && std::is_class_v<T>) {
    std::vector<T> copy(objects, objects + n);
    for (T& object : copy) clear_padding(object);
    f(copy.data());
  } else {
    f(objects);
  }
}

}  // namespace kvlab
