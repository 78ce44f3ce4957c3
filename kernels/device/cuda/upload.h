#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <tuple>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/device/cuda/memory.h"

namespace kvlab {

// One copy of several CPU arrays. Null stays null.
template <class... T>
std::tuple<const T*...> upload_all(CudaContext& cuda, std::span<const T>... arrays) {
  constexpr std::size_t kAlign = 16;
  const auto room = [](std::size_t bytes) { return round_up(bytes, kAlign); };
  std::vector<std::byte> host((room(arrays.size_bytes()) + ... + std::size_t{0}));
  std::byte* const device = cuda.scratch<std::byte>(static_cast<std::int64_t>(host.size()));
  std::size_t at = 0;
  const auto place = [&]<class U>(std::span<const U> array) -> const U* {
    if (array.data() == nullptr) return nullptr;
    const std::size_t mine = at;
    at += room(array.size_bytes());
    without_padding(array.data(), static_cast<std::int64_t>(array.size()), [&](const U* bytes) {
      if (!array.empty()) std::memcpy(host.data() + mine, bytes, array.size_bytes());
    });
    return reinterpret_cast<const U*>(device + mine);
  };
  const std::tuple<const T*...> places{place(arrays)...};  // braces: in this order
  cuda::to_device(device, host.data(), static_cast<std::int64_t>(at), cuda.stream());
  return places;
}

// `data` may be null.
template <class T>
std::span<const T> host_array(const T* data, std::int64_t n) {
  return {data, data == nullptr ? 0 : static_cast<std::size_t>(n)};
}

// Waits for the stream.
template <class T>
std::vector<T> download(CudaContext& cuda, const T* device, std::int64_t n) {
  std::vector<T> host(static_cast<std::size_t>(n));
  if (n > 0) cuda::to_host(host.data(), device, n * static_cast<std::int64_t>(sizeof(T)), cuda.stream());
  cuda.synchronize();
  return host;
}

}  // namespace kvlab
