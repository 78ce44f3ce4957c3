#pragma once

#include "calibrate/calibration.h"

namespace kvlab {

// The results of a finished calibration, for its folder.
struct CalibratedFolder {
  const ModelSpec& model;
  const DeviceFacts& facts;
  const CalibrationPlan& plan;
  const std::vector<HeldOutError>& errors;
  const std::vector<HeldOut>& held_out;
  const Measurements& measurements;
};

// Writes the profile (docs/cost-model.md), heldout.csv, models/NAME.yaml where the model was measured in other types than its file says,
// and hardware/NAME.yaml where no datasheet was named; replaces what an earlier calibration into the folder wrote. InputError when the
// lint finds an entry impossible: then the measurements stay, and no profile is written.
void write_profile_folder(const CalibratedFolder& folder, Profile profile);

// The file in profiles/hardware that describes this GPU, found by the driver's name for it and its memory; "": none does.
std::string known_hardware(const std::string& device, std::int64_t memory_bytes);

}  // namespace kvlab
