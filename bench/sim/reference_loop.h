#pragma once

namespace kvlab {

// This machine's rates in a fixed loop, measured once per program, as a reference for simulator speeds.
struct ReferenceRates {
  double random_reads_per_s = 0;  // dependent reads of random 64-byte lines in 64 MiB
  double integer_adds_per_s = 0;  // dependent 64-bit adds and xors
};
const ReferenceRates& reference_rates();

}  // namespace kvlab
