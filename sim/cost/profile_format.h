#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config/registry.h"

namespace kvlab {

struct ModelSpec;
struct Parallel;
struct Profile;

// Measured kernel tables, chosen by `profile: {NAME: {...}}`. A new format is one file that ends in
//   KVLAB_REGISTER(ProfileFormat, VidurFormat, "vidur", "tables of Vidur's profiler", "Agrawal et al. 2024");
class ProfileFormat {
 public:
  virtual ~ProfileFormat() = default;

  [[nodiscard]] virtual std::string parameters() const { return "path, missing, impossible, kv_reads"; }
  // False: the functions below are not called.
  [[nodiscard]] virtual bool has_tables() const { return true; }
  // Parameter with the folder.
  [[nodiscard]] virtual std::string folder_key() const { return "path"; }
  // Throws InputError.
  [[nodiscard]] virtual std::string read_folder(Params& p) const;
  // Default of `missing` is `roofline`.
  [[nodiscard]] virtual bool fills_gaps() const { return false; }

  // The file that only this format has, and its word in messages: {"mlp.csv", "Vidur's"}. May be empty.
  [[nodiscard]] virtual std::pair<std::string, std::string> mark() const { return {}; }
  [[nodiscard]] virtual bool is_form_of(const std::string& folder) const = 0;
  // Tables are in tp<N>/ per tensor-parallel degree.
  [[nodiscard]] virtual bool has_degrees() const { return false; }
  // Throws InputError with file:line.
  [[nodiscard]] virtual Profile read(const std::string& folder, int tp) const = 0;
  virtual void add_tables_of_model(Profile& /*profile*/, const ModelSpec& /*m*/, const Parallel& /*p*/) const {}
  // "": it can.
  [[nodiscard]] virtual std::string why_not_converted() const { return ""; }
};

// With tables, our own first.
std::vector<std::string> profile_format_names();
std::unique_ptr<ProfileFormat> make_profile_format(const std::string& name);
// By the folder's files. Throws InputError.
std::string profile_format_of(const std::string& folder);
bool some_degree_has(const std::string& folder, const std::string& file);

}  // namespace kvlab
