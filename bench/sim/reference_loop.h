#pragma once

namespace kvlab {

// The rates of this machine in a fixed loop, measured once per program: speeds of the simulator mean little without them.
struct ReferenceRates {
  double random_reads_per_s = 0;  // dependent reads of one 64-byte line each, in 64 MiB, in random order
  double integer_adds_per_s = 0;  // dependent 64-bit adds and xors
};
const ReferenceRates& reference_rates();

}  // namespace kvlab
