#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace kvlab {

std::string program_version();  // "0.1.0", with the commit if known

// Made by cmake/source_table.cmake.
struct SourceFile {
  std::string_view path;  // relative to the project
  std::string_view hash;
  bool is_policy = false;  // only used by runs with its policies
};

std::span<const SourceFile> source_table();
std::string_view build_settings();

// "core" and the sources of a run's policies -> fingerprint.
using CodeVersion = std::map<std::string, std::string>;

// sources: files that registered the run's parts, as the compiler names them. Core: all non-policy sources.
CodeVersion code_version(const std::set<std::string>& sources, std::span<const SourceFile> table, std::string_view settings);
// For the running program, with sources added at run time.
CodeVersion code_version(const std::set<std::string>& sources);

// Sets the text of a source added at run time. `name`: as in Registry::add_running. Not concurrent with code_version().
void set_running_source(const std::string& name, std::string_view text);
// Changes with any of these texts.
std::string running_sources();

// Differing names.
std::string changed_code(const CodeVersion& was, const CodeVersion& is);

}  // namespace kvlab
