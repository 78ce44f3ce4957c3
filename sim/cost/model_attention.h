#pragma once

#include "base/config/params.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_file.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Required without a fallback.
std::int64_t read_size(Params& p, const char* key, std::int64_t fallback, std::int64_t max, const char* meaning);

// Throws InputError for a kind that the family lacks or that is not priced.
void check_layer_types(Params& p, const Family& family);

// Heads, latent and linear attention, kinds of layers, windows. Needs m.layers and m.hidden.
void read_attention(Params& p, const Family& family, const ModelFile& file, ModelSpec& m);

// Experts and dense MLPs. Needs m.layers and m.hidden.
void read_mlps(Params& p, const Family& family, ModelSpec& m);

}  // namespace kvlab
