#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace kvlab {

// A source of the program as it was built; the table of all is made by cmake/source_table.cmake.
struct SourceFile {
  std::string_view path;  // seen from the project's folder
  std::string_view hash;
  bool is_policy = false;  // nothing but runs that make its policies uses it
};

std::span<const SourceFile> source_table();
// Compiler, flags and options of the build.
std::string_view build_settings();

// The code that a run's results depend on: "core" and the sources of the run's policies -> fingerprint.
using CodeVersion = std::map<std::string, std::string>;

// sources: files that registered what the run makes, as the compiler names them. The core is every source but those of policies.
CodeVersion code_version(const std::set<std::string>& sources, std::span<const SourceFile> table, std::string_view settings);
// The same for the running program, with the sources that it was given since it started.
CodeVersion code_version(const std::set<std::string>& sources);

// The text of a source that the program was given while it runs, such as a policy in Python: `name` is the one that Registry::add_running
// was told. It replaces an earlier text of the name. Not while another thread asks for code_version().
void set_running_source(const std::string& name, std::string_view text);
// One line that differs where any of these texts does: for results that are kept from one run of this program to the next.
std::string running_sources();

// Names in which the two differ: "policies/scheduler/orca.cpp".
std::string changed_code(const CodeVersion& was, const CodeVersion& is);

}  // namespace kvlab
