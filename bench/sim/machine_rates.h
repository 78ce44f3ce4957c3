#pragma once

namespace kvlab {

// The best rates of two threads of this machine, measured once per program: the limits that replays are compared with.
struct MachineRates {
  double copy_bytes_per_s = 0;  // memcpy, bytes read plus bytes written
  double read_bytes_per_s = 0;  // sums over 256 MiB per thread, read in eight streams
  double gemm_flops_per_s = 0;  // Eigen, float32, 1024 x 1024 x 1024 per thread

  [[nodiscard]] double bytes_per_s() const { return copy_bytes_per_s > read_bytes_per_s ? copy_bytes_per_s : read_bytes_per_s; }
};
const MachineRates& machine_rates();

// Their rates at this moment, measured in some 15 ms: others use the machine too, and rates differ by up to a factor of two from second to
// second. Without copy_bytes_per_s. Call it from one thread at a time.
MachineRates rates_now();

}  // namespace kvlab
