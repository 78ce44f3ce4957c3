#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// A text of n tokens after its <s>.
inline std::vector<std::int32_t> text_ids(std::int32_t n) {
  std::vector<std::int32_t> ids{256};
  for (std::int32_t i = 1; i < n; ++i) ids.push_back(32 + (i * i * 11 + i * 5 + i / 7) % 90);
  return ids;
}

// The probe's tokens of a text: its bytes.
inline std::vector<std::int32_t> byte_tokens(std::string_view text, bool is_start) {
  std::vector<std::int32_t> ids;
  if (is_start) ids.push_back(256);
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// Infinite where the sizes differ, NaN where a difference is.
inline float largest_difference(std::span<const float> a, std::span<const float> b) {
  float worst = a.size() == b.size() ? 0.0F : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    worst = std::max(worst, difference);
  }
  return worst;
}

inline std::vector<float> in_chunks(const Transformer& model, std::span<const std::int32_t> ids, std::size_t chunk, KvState& kv) {
  std::vector<float> logits;
  for (std::size_t begin = 0; begin < ids.size(); begin += chunk) {
    const std::vector<float> part = forward_logits(model, ids.subspan(begin, std::min(chunk, ids.size() - begin)), kv);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

inline SafetensorsFile golden_logits() { return SafetensorsFile::open(kProbeDir + "/logits_golden.safetensors"); }

}  // namespace kvlab
