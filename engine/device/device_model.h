#pragma once

#include <memory>

#include "engine/backend/engine_model.h"
#include "engine/device/device_transformer.h"

namespace kvlab {

// A model on GPU 0 in bf16, or in f16 where that has no bf16, with weights in memory or of a folder. Errors as make_engine_model's.
std::unique_ptr<EngineModel> make_device_model(const ModelConfig& config, const WeightParts& weights, const GpuOptions& options);
std::unique_ptr<EngineModel> make_device_model(const ModelConfig& config, const WeightParts& weights, const GpuOptions& options,
                                               ElementType type);

// The same with random weights, drawn on the GPU.
std::unique_ptr<EngineModel> make_random_device_model(const ModelConfig& config, const GpuOptions& options);

// For a cache under this model, which outlives it.
std::unique_ptr<const CacheModel> make_cache_model(DeviceTransformer& model);

}  // namespace kvlab
