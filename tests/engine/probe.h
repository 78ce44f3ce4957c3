#pragma once

#include <cstdlib>
#include <string>

#include "base/safetensors.h"
#include "engine/backend/engine_model.h"
#include "engine/model/transformer.h"

namespace kvlab {

inline const std::string kProbeDir = KVLAB_SOURCE_DIR "/engine/probe";

// Loaded once per program.
inline const EngineModel& probe_engine() {
  static const std::unique_ptr<EngineModel> model = make_engine_model("cpu", kProbeDir);
  return *model;
}
inline const Transformer& probe() { return *probe_engine().transformer(); }

inline SafetensorsFile golden_logits() { return SafetensorsFile::open(kProbeDir + "/logits_golden.safetensors"); }

}  // namespace kvlab
