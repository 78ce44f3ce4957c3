#include "traces/public_traces.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "base/config/params.h"
#include "base/config/spec_file.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

PublicTrace read_public_trace(Params p, const std::string& name) {
  PublicTrace trace;
  trace.name = name;
  trace.title = p.text("title", "of the trace");
  trace.address = p.text("address", "", "of its file");
  trace.steps = p.text("steps", "", "how to get it where it is no single file");
  trace.file = p.text("file", "below the folder of fetched traces");
  trace.bytes = static_cast<std::uint64_t>(p.optional<std::int64_t>("bytes", 0, 0, std::int64_t{1} << 50, "size of the file; 0: unknown"));
  trace.sha256 = p.text("sha256", "unknown", "of the file");
  trace.licence = p.text("licence", "as its publisher states it");
  trace.format = p.text("format", "of trace files, with options");
  trace.paper = p.text("paper", "", "that describes it");
  if (trace.sha256 == "unknown") trace.sha256.clear();
  if (!trace.sha256.empty() && (trace.sha256.size() != 64 || trace.sha256.find_first_not_of("0123456789abcdef") != std::string::npos))
    p.fail_at("sha256", "expected 64 hexadecimal digits, or unknown");
  if (trace.address.empty() == trace.steps.empty()) p.fail("a public trace has either 'address' or 'steps'");
  p.reject_unread();
  return trace;
}

}  // namespace

std::string public_traces_list() {
  constexpr const char* kList = "traces/public_traces.yaml";
  std::error_code error;
  if (fs::exists(kList, error)) return kList;
  return (fs::path(profiles_folder()).parent_path() / kList).string();
}

std::string public_traces_folder(const std::string& list) { return (fs::path(list).parent_path() / "public").string(); }

std::vector<PublicTrace> read_public_traces(const std::string& list) {
  Params all(load_config(list), std::make_shared<Choices>(), "the list of public traces");
  std::vector<PublicTrace> traces;
  for (const std::string& name : all.keys()) traces.push_back(read_public_trace(all.child(name, name), name));
  return traces;
}

std::string public_trace_advice(const std::string& path) {
  const std::string list = public_traces_list();
  std::error_code error;
  if (!fs::exists(list, error)) return "";
  const std::string name = fs::path(path).filename().string();
  for (const PublicTrace& trace : read_public_traces(list)) {
    if (name != trace.name && name != trace.file) continue;
    const fs::path fetched = fs::path(public_traces_folder(list)) / trace.file;
    if (fs::exists(fetched, error)) return fmt::format("; the public trace is at '{}'", fetched.string());
    return fmt::format("; './kvlab trace fetch {}' downloads it", trace.name);
  }
  return "";
}

}  // namespace kvlab
