#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "sim/cost/hardware_spec.h"

namespace kvlab {

class Params;

// Shared by the reader, the remarks on odd figures and the table in profiles/README.md.
struct HardwareKey {
  // `of`: times the value of that key, read earlier.
  struct Default {
    double value = 0;
    const char* of = nullptr;
    bool is_required = false;
  };
  const char* key;
  const char* unit;  // "": a count or a share
  double min, max;   // of a given value
  Default absent;
  std::variant<std::int64_t HardwareSpec::*, int HardwareSpec::*, double HardwareSpec::*> field;
  const char* text;
  void (*check)(const Params& p, const HardwareKey& key, double value) = nullptr;  // throws InputError with a place
};

// In the order of reading.
std::span<const HardwareKey> hardware_keys();
void read_hardware_keys(Params& p, HardwareSpec& h);
double hardware_value(const HardwareSpec& h, const char* key);

}  // namespace kvlab
