#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/offers.h"
#include "app/commands/other_commands.h"
#include "app/commands/shell_word.h"
#include "base/error.h"
#include "base/text.h"
#include "traces/public_traces.h"

namespace kvlab {

namespace {

struct FetchCommand {
  std::string name;
  std::string list;  // "": the shipped one
};

namespace fs = std::filesystem;

bool succeeds(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool has_program(const std::string& name) { return succeeds("command -v " + name + " >/dev/null 2>&1"); }

std::string sha256_of(const std::string& path) {
  const std::string tool = has_program("sha256sum") ? "sha256sum" : "shasum -a 256";
  std::FILE* const pipe = ::popen((tool + " < " + shell_word(path)).c_str(), "r");
  std::array<char, 65> digits{};
  const bool is_read = pipe != nullptr && std::fgets(digits.data(), digits.size(), pipe) != nullptr;
  if (pipe != nullptr) ::pclose(pipe);
  const std::string text = digits.data();
  if (!is_read || text.size() != 64) throw InputError("no SHA-256 of " + path + ": neither sha256sum nor shasum works here");
  return text;
}

// Resumes `part`. Returns true once complete.
bool download(const std::string& address, const std::string& part) {
  const std::string progress = ::isatty(STDERR_FILENO) != 0 ? "--progress-bar" : "--silent --show-error";
  if (has_program("curl"))
    return succeeds(fmt::format("curl --fail --location {} --continue-at - --output {} {} </dev/null", progress, shell_word(part),
                                shell_word(address)));
  if (has_program("wget"))
    return succeeds(fmt::format("wget --continue --quiet --output-document={} {} </dev/null", shell_word(part), shell_word(address)));
  throw InputError("neither curl nor wget is installed here");
}

void print_list(const std::vector<PublicTrace>& traces, const std::string& folder, std::ostream& out) {
  for (const PublicTrace& trace : traces) {
    std::error_code error;
    const bool is_there = fs::exists(fs::path(folder) / trace.file, error);
    out << fmt::format("{:<22} {}{}\n{:<22} {}; format {}{}{}\n", trace.name, trace.title, is_there ? " (fetched)" : "", "", trace.licence,
                       trace.format, trace.paper.empty() ? "" : "; ", trace.paper);
  }
  out << "\n./kvlab trace fetch NAME downloads one into " << folder << "\n";
}

const PublicTrace& find_trace(const std::vector<PublicTrace>& traces, const std::string& name) {
  std::vector<std::string> names;
  for (const PublicTrace& trace : traces) {
    if (trace.name == name) return trace;
    names.push_back(trace.name);
  }
  throw InputError("unknown public trace '" + name + "'" + suggestion(name, names));
}

// Throws if the sum differs.
void check_sum(const PublicTrace& trace, const std::string& part, std::ostream& out) {
  const std::string found = sha256_of(part);
  if (trace.sha256.empty()) {
    out << fmt::format("sha256 {} (none is listed to compare with)\n", found);
    return;
  }
  if (found == trace.sha256) return;
  fs::remove(part);
  throw InputError(
      fmt::format("{}: the SHA-256 of {} is {}, not {} as listed; the file is not kept", trace.name, trace.address, found, trace.sha256));
}

void print_use(const PublicTrace& trace, const std::string& path, std::ostream& out) {
  out << fmt::format("trace: {{file: {}}}   # format {}; {}\n", path, trace.format, trace.licence);
}

int fetch_trace(const FetchCommand& command, std::ostream& out) {
  const std::string list = command.list.empty() ? public_traces_list() : command.list;
  const std::vector<PublicTrace> traces = read_public_traces(list);
  const std::string folder = public_traces_folder(list);
  if (command.name.empty()) {
    print_list(traces, folder, out);
    return 0;
  }
  const PublicTrace& trace = find_trace(traces, command.name);
  const std::string path = (fs::path(folder) / trace.file).string(), part = path + ".part";
  if (fs::exists(path)) {
    out << path << " is there already\n";
    print_use(trace, path, out);
    return 0;
  }
  if (trace.address.empty()) {
    out << fmt::format("{} is no single file. In {}: {}\n", trace.name, folder, trace.steps);
    return 0;
  }
  fs::create_directories(fs::path(path).parent_path());
  std::error_code error;
  const bool is_whole = trace.bytes > 0 && fs::exists(part, error) && fs::file_size(part, error) == trace.bytes;
  if (!is_whole && !download(trace.address, part))
    throw InputError(fmt::format("{} cannot be downloaded: without a connection, save it elsewhere and put it at {}", trace.address, path));
  check_sum(trace, part, out);
  fs::rename(part, path);
  out << fmt::format("wrote {}: {} bytes\n", path, fs::file_size(path));
  print_use(trace, path, out);
  return 0;
}

}  // namespace

void add_fetch_command(CLI::App& trace, Command& chosen) {
  CLI::App* fetch = trace.add_subcommand("fetch", "download a public trace; without a name, list them");
  auto& c = arguments_of<FetchCommand>(*fetch);
  fetch->add_option("name", c.name, "of the trace")->check(offers(Offer::kNames, "public_traces"));
  fetch->add_option("--list", c.list, "another list than traces/public_traces.yaml; traces go to public/ beside it");
  choose(fetch, chosen, c, fetch_trace);
}

}  // namespace kvlab
