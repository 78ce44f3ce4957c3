#pragma once

#include "calibrate/calibration.h"

namespace kvlab {

struct CalibratedFolder {
  const ModelSpec& model;
  const DeviceFacts& facts;
  const CalibrationPlan& plan;
  const std::vector<HeldOutError>& errors;
  const std::vector<HeldOut>& held_out;
  const Measurements& measurements;
};

// Writes the profile (docs/cost-model.md), heldout.csv, models/NAME.yaml if measured in other types, and hardware/NAME.yaml without a
// datasheet. Throws InputError, before the profile, if the lint finds an entry impossible.
void write_profile_folder(const CalibratedFolder& folder, Profile profile);

// In profiles/hardware, by driver name and memory; "" if none.
std::string known_hardware(const std::string& device, std::int64_t memory_bytes);

}  // namespace kvlab
