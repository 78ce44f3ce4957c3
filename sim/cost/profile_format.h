#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config/registry.h"

namespace kvlab {

struct ModelSpec;
struct Parallel;
struct Profile;

// A form of measured kernel tables, chosen by `profile: {NAME: {...}}`. A new format is one file that ends in
//   KVLAB_REGISTER(ProfileFormat, VidurFormat, "vidur", "tables of Vidur's profiler", "Agrawal et al. 2024");
class ProfileFormat {
 public:
  virtual ~ProfileFormat() = default;

  // The parameters that it takes, for messages.
  [[nodiscard]] virtual std::string parameters() const { return "path, missing, impossible, kv_reads"; }
  // False: step times come from no table; the functions below are not called.
  [[nodiscard]] virtual bool has_tables() const { return true; }
  // The parameter that names the folder.
  [[nodiscard]] virtual std::string folder_key() const { return "path"; }
  // Reads the parameters that name the folder. Throws InputError.
  [[nodiscard]] virtual std::string read_folder(Params& p) const;
  // True: `missing` is `roofline` unless the experiment says otherwise.
  [[nodiscard]] virtual bool fills_gaps() const { return false; }

  // The file that only this format has, and how messages go on: {"mlp.csv", "Vidur's"}. Empty: messages leave it out.
  [[nodiscard]] virtual std::pair<std::string, std::string> mark() const { return {}; }
  [[nodiscard]] virtual bool is_form_of(const std::string& folder) const = 0;
  // True: tables are in a folder tp<N>/ for each tensor-parallel degree.
  [[nodiscard]] virtual bool has_degrees() const { return false; }
  // Throws InputError with file:line.
  [[nodiscard]] virtual Profile read(const std::string& folder, int tp) const = 0;
  // Adds the tables that depend on the model.
  virtual void add_tables_of_model(Profile& /*profile*/, const ModelSpec& /*m*/, const Parallel& /*p*/) const {}
  // Why `profile convert` cannot read it; "": it can.
  [[nodiscard]] virtual std::string why_not_converted() const { return ""; }
};

// Names of the formats with tables, our own first.
std::vector<std::string> profile_format_names();
// `name`: of a registered format.
std::unique_ptr<ProfileFormat> make_profile_format(const std::string& name);
// The name of the format whose files the folder has. Throws InputError.
std::string profile_format_of(const std::string& folder);
// True: a folder tp<N>/ below `folder` has `file`.
bool some_degree_has(const std::string& folder, const std::string& file);

}  // namespace kvlab
