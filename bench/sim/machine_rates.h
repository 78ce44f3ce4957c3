#pragma once

namespace kvlab {

// What two threads of this machine do at best, measured once per program: the limits that replays are held against.
struct MachineRates {
  double copy_bytes_per_s = 0;  // memcpy, bytes read plus bytes written
  double read_bytes_per_s = 0;  // sums over 256 MiB per thread, read in eight streams
  double gemm_flops_per_s = 0;  // Eigen, float32, 1024 x 1024 x 1024 per thread

  [[nodiscard]] double bytes_per_s() const { return copy_bytes_per_s > read_bytes_per_s ? copy_bytes_per_s : read_bytes_per_s; }
};
const MachineRates& machine_rates();

// What they do at this moment, measured in some 15 ms: others use the machine too, and from second to second it gives up to twice as much.
// Without copy_bytes_per_s. From one thread at a time.
MachineRates rates_now();

}  // namespace kvlab
