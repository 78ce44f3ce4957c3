#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>

namespace kvlab {

// Read-only numpy view for one Python call. Requires the GIL.
class LentArray {
 public:
  template <class T>
  LentArray(const T* data, std::initializer_list<std::size_t> shape, std::initializer_list<std::int64_t> strides = {}) {
    const nanobind::ndarray<nanobind::numpy, const T> view(data, shape, nanobind::handle(), strides);
    array_ = nanobind::cast(view, nanobind::rv_policy::reference);
  }
  [[nodiscard]] nanobind::handle object() const { return array_; }
  // After the call: the policy still refers to the memory.
  [[nodiscard]] bool is_kept() const { return Py_REFCNT(array_.ptr()) > 1; }

 private:
  nanobind::object array_;
};

}  // namespace kvlab
