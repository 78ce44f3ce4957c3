#pragma once

#include <memory>
#include <optional>

#include "engine/backend/engine_model.h"
#include "engine/device/device_transformer.h"

namespace kvlab {

// GPU 0; `type`: none: bf16, or f16 without bf16. Errors as make_engine_model.
std::unique_ptr<EngineModel> make_device_model(const ModelConfig& config, const WeightParts& weights, const GpuOptions& options,
                                               std::optional<ElementType> type = {});
// Weights drawn on the GPU.
std::unique_ptr<EngineModel> make_random_device_model(const ModelConfig& config, const GpuOptions& options);

// Outlived by `model`.
std::unique_ptr<const CacheModel> make_cache_model(DeviceTransformer& model);

}  // namespace kvlab
