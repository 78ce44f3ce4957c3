#include "app/run_files.h"

#include <algorithm>

#include "app/csv.h"
#include "app/perfetto.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRequestColumns =
    "run,request,replica,session,arrival_ns,queued_ns,scheduled_ns,first_token_ns,last_token_ns,prompt_tokens,output_tokens,hit_tokens,"
    "preemptions,recomputed_tokens,state\n";
constexpr const char* kTimelineColumns =
    "run,replica,time_ns,running,waiting,swapped,used_blocks,cached_blocks,free_blocks,prompt_tokens,output_tokens\n";

struct Instant {  // formats as ns, or as nothing when it never came
  Time at;
};

}  // namespace

}  // namespace kvlab

template <>
struct fmt::formatter<kvlab::Instant> : fmt::formatter<std::int64_t> {
  template <class Context>
  auto format(kvlab::Instant i, Context& context) const {
    return i.at == kvlab::kNever ? context.out() : fmt::formatter<std::int64_t>::format(kvlab::ns(i.at), context);
  }
};

namespace kvlab {

RunFiles::RunFiles(fs::path runs, std::string id, Tables tables)
    : runs_(std::move(runs)), fresh_(runs_ / (".new-" + id)), id_(std::move(id)) {
  fs::remove_all(fresh_);
  fs::create_directories(fresh_);
  if (tables == Tables::kNone) return;
  requests_ = std::make_unique<TextFile>(fresh_ / "requests.csv");
  requests_->write(kRequestColumns);
  timeline_ = std::make_unique<TextFile>(fresh_ / "timeline.csv");
  timeline_->write(kTimelineColumns);
  if (tables == Tables::kPerfetto) perfetto_ = std::make_unique<PerfettoFile>(fresh_ / "trace.json");
}

RunFiles::~RunFiles() {
  std::error_code ignored;  // a leftover is removed when the run is next started
  fs::remove_all(fresh_, ignored);
}

void RunFiles::request(const RequestRecord& r) {
  requests_->print("{},{},{},", id_, r.number, r.replica);
  if (r.session >= 0) requests_->print("{}", r.session);
  requests_->print(",{},{},{},{},{},{},{},{},{},{},{}\n", Instant{r.arrival}, Instant{r.queued}, Instant{r.scheduled},
                   Instant{r.first_token}, Instant{r.last_token}, r.prompt_tokens, r.output_tokens, r.hit_tokens, r.preemptions,
                   r.recomputed_tokens, outcome_name(r.outcome));
  if (perfetto_) perfetto_->request(r);
}

void RunFiles::sample(const TimelineSample& s) {
  timeline_->print("{},{},{},{},{},{},{},{},{},{},{}\n", id_, s.replica, ns(s.at), s.running, s.waiting, s.swapped, s.used_blocks,
                   s.cached_blocks, s.free_blocks, s.prompt_tokens, s.output_tokens);
  if (perfetto_) perfetto_->sample(s);
}

void RunFiles::step(const StepRecord& step) { perfetto_->step(step); }

void RunFiles::event(const RequestEventRecord& event) {
  if (perfetto_) perfetto_->event(event);
}

void RunFiles::add_file(const std::string& name, const std::string& text) {
  TextFile file(fresh_ / name);
  file.write(text);
  file.close();
}

void RunFiles::commit(const std::string& manifest) {
  if (requests_) requests_->close();
  if (timeline_) timeline_->close();
  if (perfetto_) perfetto_->close();
  add_file("manifest.json", manifest);
  const fs::path target = runs_ / id_;
  fs::remove_all(target);
  fs::rename(fresh_, target);
}

std::string axis_column(const std::string& path) { return path == "block_caches" ? "block_cache" : path; }

std::string summary_csv(const Experiment& experiment, const RunSpec& run, const Fields& fields) {
  std::vector<std::string> header{"run"}, row{run.id};
  for (const std::string& axis : experiment.axes) header.push_back(axis_column(axis));
  row.insert(row.end(), run.labels.begin(), run.labels.end());
  header.emplace_back("seed");
  row.push_back(std::to_string(run.seed));
  for (const auto& [column, value] : fields) {
    if (std::find(header.begin(), header.end(), column) != header.end()) continue;  // it is an axis, too
    header.push_back(column);
    row.push_back(value);
  }
  return csv_line(header) + csv_line(row);
}

}  // namespace kvlab
