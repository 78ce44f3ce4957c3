#pragma once

#include "base/params.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_file.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// InputError for a kind of layer that the family has not, or that is not priced.
void check_layer_types(Params& p, const Family& family);
// Reads the heads of attention, latent attention and layers of linear attention; which layers have which kind; and windows. Layers and
// hidden width are known.
void read_attention(Params& p, const Family& family, const ModelFile& file, ModelSpec& m);

}  // namespace kvlab
