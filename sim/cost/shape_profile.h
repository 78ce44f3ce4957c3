#pragma once

#include <string>

#include "base/params.h"
#include "sim/cost/profile.h"

namespace kvlab {

struct ModelSpec;
struct Parallel;

// Measured tables of no model: matrix products by their sizes, attention by its heads, experts by their widths. A folder that
// `./kvlab profile convert --format aisimulate` wrote; docs/cost-model.md has its files.

// The folder that `profile: {aisimulate: {system, backend, version, dir}}` means. InputError with the command that makes it.
std::string shape_tables_folder(Params& choice);

// Card, source, notes and collectives of a folder, which are of no model. read_tables_of_model adds the rest.
Profile read_shape_profile(const std::string& folder, int tp);

// Adds the times of this model on one rank: each matrix product at its own width and depth, attention at its own heads. Tables that the
// folder lacks stay empty, and attention's where layers keep a latent vector or a state.
void read_tables_of_model(Profile& profile, const ModelSpec& m, const Parallel& p);

// True if the folder has this form.
bool is_shape_folder(const std::string& folder);

}  // namespace kvlab
