#include "app/results/code_version.h"

#include <algorithm>
#include <vector>

#include "app/results/safe_files.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::string core_of(std::span<const SourceFile> table, std::string_view settings) {
  std::uint64_t core = fingerprint_of_text(settings);
  for (const SourceFile& source : table) {
    if (source.is_policy) continue;
    core = fingerprint_of_text(source.path, core);
    core = fingerprint_of_text(source.hash, core);
  }
  return hex(core);
}

// The compiler may name a file by any path.
bool is_named(std::string_view by_compiler, std::string_view path) {
  if (!by_compiler.ends_with(path)) return false;
  return by_compiler.size() == path.size() || by_compiler[by_compiler.size() - path.size() - 1] == '/';
}

CodeVersion& running_source_table() {
  static CodeVersion table;
  return table;
}

void add_sources(CodeVersion& code, const std::set<std::string>& sources, std::span<const SourceFile> table) {
  for (const std::string& source : sources) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const SourceFile& s) { return is_named(source, s.path); });
    if (found != table.end() && found->is_policy) code.emplace(found->path, found->hash);
  }
}

}  // namespace

CodeVersion code_version(const std::set<std::string>& sources, std::span<const SourceFile> table, std::string_view settings) {
  CodeVersion code{{"core", core_of(table, settings)}};
  add_sources(code, sources, table);
  return code;
}

CodeVersion code_version(const std::set<std::string>& sources) {
  static const std::string core = core_of(source_table(), build_settings());
  CodeVersion code{{"core", core}};
  add_sources(code, sources, source_table());
  for (const auto& [name, hash] : running_source_table())
    if (sources.contains(name)) code.emplace(name, hash);
  return code;
}

void set_running_source(const std::string& name, std::string_view text) {
  running_source_table().insert_or_assign(name, hex(fingerprint_of_text(text)));
}

std::string running_sources() {
  std::string line;
  for (const auto& [name, hash] : running_source_table()) line += " " + name + " " + hash;
  return line;
}

std::string changed_code(const CodeVersion& was, const CodeVersion& is) {
  std::vector<std::string> changed;
  for (const auto& [name, hash] : is) {
    const auto before = was.find(name);
    if (before == was.end() || before->second != hash) changed.push_back(name);
  }
  for (const auto& [name, hash] : was)
    if (!is.contains(name)) changed.push_back(name);
  return join(changed, ", ");
}

std::string program_version() {
  const std::string commit = KVLAB_COMMIT;
  return std::string(KVLAB_VERSION) + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace kvlab
