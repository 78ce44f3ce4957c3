#pragma once

namespace kvlab {

// Best rates of two threads, measured once per program.
struct MachineRates {
  double copy_bytes_per_s = 0;  // memcpy, bytes read plus bytes written
  double read_bytes_per_s = 0;  // sums of 256 MiB per thread in eight streams
  double gemm_flops_per_s = 0;  // Eigen, float32, 1024 x 1024 x 1024 per thread

  [[nodiscard]] double bytes_per_s() const { return copy_bytes_per_s > read_bytes_per_s ? copy_bytes_per_s : read_bytes_per_s; }
};
const MachineRates& machine_rates();

// Current rates, without copy_bytes_per_s, measured in about 15 ms: on a shared machine they vary by up to a factor of two. Not
// thread-safe.
MachineRates rates_now();

}  // namespace kvlab
