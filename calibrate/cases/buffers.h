#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "calibrate/cases/kernel_case.h"
#include "kernels/element.h"

namespace kvlab {

// Cut from large pieces, freed together.
class DevicePool {
 public:
  explicit DevicePool(TimedDevice& device) : device_(device) {}
  void* take(std::int64_t bytes);

 private:
  TimedDevice& device_;
  std::list<std::shared_ptr<void>> pieces_;
  char* at_ = nullptr;
  std::int64_t left_ = 0;
};

// Shared: each case reads on where the previous one stopped, so the cache is as in a step.
class SharedNumbers {
 public:
  explicit SharedNumbers(TimedDevice& device) : device_(device) {}
  // Frees the previous case's numbers. Returns the byte at which reading continues.
  std::int64_t begin_case();
  void stop_reading_at(std::int64_t byte) { next_read_ = byte; }
  // n of deviation 1; may be overwritten with numbers.
  void* take(std::int64_t n, ElementType type);

 private:
  struct Piece {
    std::shared_ptr<void> memory;
    std::int64_t bytes = 0, taken = 0;
  };
  TimedDevice& device_;
  std::map<ElementType, std::vector<Piece>> pieces_;
  std::int64_t next_read_ = 0;
};

// Random, the same in every run, different between copies.
class Buffers {
 public:
  // `shared` supplies the numbers; null: the copy's own.
  Buffers(TimedDevice& device, DevicePool& pool, ElementType type, std::uint64_t seed, SharedNumbers* shared = nullptr)
      : device_(device), pool_(pool), type_(type), first_seed_(seed), seed_(seed), shared_(shared) {}

  // For tensors passed between operations of a step, not weights and cache.
  [[nodiscard]] Buffers& activations() { return activations_ != nullptr ? *activations_ : *this; }
  // Hands out the same buffers again, in order. Activations come from `activations` (null: this).
  void rewind(Buffers* activations) { next_ = 0, seed_ = first_seed_, activations_ = activations; }

  [[nodiscard]] ElementType type() const { return type_; }
  [[nodiscard]] TimedDevice& device() { return device_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // handed out

  // n of T, filled with NaN bits.
  template <class T>
  T* room(std::int64_t n) {
    return static_cast<T*>(poisoned(n * static_cast<std::int64_t>(sizeof(T))));
  }
  void* element_room(std::int64_t n) { return poisoned(n * element_bytes(type_)); }
  // n normal numbers of deviation 1.
  void* elements(std::int64_t n) { return normal(n, type_); }
  float* floats(std::int64_t n) { return static_cast<float*>(normal(n, ElementType::kF32)); }
  // To device memory.
  template <class T>
  T* put(const std::vector<T>& host) {
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(T));
    const Taken to = take(bytes);
    if (to.is_fresh) device_.to_device(to.memory, host.data(), bytes);
    return static_cast<T*>(to.memory);
  }
  // CPU memory that lives as long as the operands.
  template <class T>
  T* host(std::vector<T> values) {
    auto kept = std::make_shared<std::vector<T>>(std::move(values));
    host_.push_back(kept);
    return kept->data();
  }
  std::uint64_t draw();

 private:
  struct Taken {
    void* memory = nullptr;
    bool is_fresh = true;
  };
  Taken take(std::int64_t bytes);
  Taken keep(void* memory, std::int64_t bytes);
  void* poisoned(std::int64_t bytes);
  void* normal(std::int64_t n, ElementType type);

  TimedDevice& device_;
  DevicePool& pool_;
  ElementType type_;
  std::uint64_t first_seed_, seed_;
  SharedNumbers* shared_ = nullptr;
  Buffers* activations_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<void*> taken_;
  std::size_t next_ = 0;  // taken_.size(): allocate
  std::vector<std::shared_ptr<void>> host_;
};

template <class Values>
decltype(auto) nth(Values&& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

// 0 to n - 1, shuffled.
std::vector<std::int32_t> shuffled(Buffers& buffers, std::int64_t n);

std::vector<float> read_floats(TimedDevice& device, const void* from, std::int64_t n, ElementType type = ElementType::kF32);
template <class T>
std::vector<T> read_values(TimedDevice& device, const T* from, std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  device.to_host(values.data(), from, n * static_cast<std::int64_t>(sizeof(T)));
  return values;
}

}  // namespace kvlab
