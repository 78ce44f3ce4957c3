#include "app/runs/plan/trace_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/read_file.h"
#include "traces/make_trace.h"

namespace kvlab {

bool RescaledTrace::next(TraceRequest& request) {
  if (!source_->next(request)) return false;
  request.arrival = kStart + from_seconds(to_s(request.arrival) * factor_);
  return true;
}

double mean_rate(TraceSource& source, std::uint64_t limit) {
  TraceRequest request;
  std::uint64_t requests = 0;
  Time first = kNever, last = kStart;
  while ((limit == 0 || requests < limit) && source.next(request)) {
    ++requests;
    if (request.is_follow_up) continue;
    first = std::min(first, request.arrival);
    last = std::max(last, request.arrival);
  }
  if (requests < 2 || last <= first) throw InputError("'search' needs a trace whose arrivals span some time, to set their rate");
  return static_cast<double>(requests - 1) / to_s(last - first);
}

namespace {

// azure_like.csv, azure_like.yaml.
std::string remark_on_sample(const Params& trace) {
  const std::filesystem::path file = trace.resolve_file(trace.inline_text("file", ""));
  if (!trace.has("file") || file.parent_path().filename() != "samples") return "";
  const std::string name = file.filename().string();
  const std::filesystem::path recipe = file.parent_path() / (name.substr(0, name.find('.')) + ".yaml");
  if (!is_file(recipe)) return "";
  return fmt::format("{} is a generated sample and no recording: traces/samples/README.md", name);
}

bool read_keep(Params& output, bool wants_perfetto) {
  const bool keeps_summary =
      output.choice("keep", {"all", "summary"}, 0, "files of a run: all, or no table of its requests and of its timeline") == 1;
  if (keeps_summary && wants_perfetto) output.fail_at("keep", "'keep: summary' writes no trace.json: leave out 'perfetto', or keep all");
  return keeps_summary;
}

}  // namespace

void refuse_pipe(const Params& p, const std::string& key) {
  const std::string path = p.resolve_file(p.inline_text(key, ""));
  if (special_file(path) == "a pipe")
    p.fail_at(key, fmt::format("'{}' is a pipe, and a run reads it more than once: save it to a file", path));
}

TraceInput read_trace(Params& p, std::uint64_t seed) {
  Params output = p.optional_child("output", "output"), trace = p.child("trace", "trace");
  TraceInput input;
  for (Params* const at : {&output, &trace})
    if (at->flag("perfetto", false, "write trace.json for ui.perfetto.dev")) input.wants_perfetto = true;
  input.keeps_summary = read_keep(output, input.wants_perfetto);
  output.reject_unread();
  refuse_pipe(trace, "file");
  input.remark = remark_on_sample(trace);
  input.open_with = [trace](std::uint64_t of_seed) {
    Params own = trace;
    return make_trace(own, of_seed);
  };
  input.open = [open = input.open_with, seed] { return open(seed); };
  TraceRequest first;
  input.open()->next(first);
  return input;
}

}  // namespace kvlab
