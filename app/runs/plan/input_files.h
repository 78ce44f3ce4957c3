#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/runs/sweep/experiment.h"
#include "base/config/params.h"
#include "base/file_memo.h"
#include "traces/trace.h"

namespace kvlab {

struct InputFile {
  std::string label;  // "file: a.csv", as written
  std::filesystem::path path;
  bool is_model = false;  // a folder; only the model's files are read
  bool is_kept = false;   // a sample that the run makes if absent; the config has its settings
};
// In a model's folder, read by engine or simulator.
std::vector<std::filesystem::path> files_of_model(const std::filesystem::path& folder);

using InputList = std::vector<InputFile>;

// Stamps files before they are read, and a folder when it is fingerprinted, before the first run.
class InputFiles {
 public:
  explicit InputFiles(const Experiment& experiment);
  // Adds files of models, GPUs and recipes noted while reading a plan.
  void add_spec_files(const Choices* choices, const std::set<std::string>& files);

  [[nodiscard]] const InputList& of_run(const RunSpec& run) const { return files_.at(run.choices.get()); }
  std::string fingerprint(const InputFile& file);
  // Path -> fingerprint.
  [[nodiscard]] const std::map<std::string, std::string>& all() const { return fingerprint_; }
  // Throws InputError if a file of the run was written since first seen, even with equal bytes. Thread-safe.
  void require_unchanged(const RunSpec& run) const;

 private:
  using Stamps = std::vector<std::pair<std::string, FileStamp>>;
  static Stamps stamps_of(const InputFile& file);
  void look_at(const InputFile& file);
  void visit(const YAML::Node& node, const std::string& key, InputList& found);
  void add_named(const std::string& key, const std::string& text, InputList& found);
  [[nodiscard]] std::optional<InputFile> file_named(const std::string& key, const std::string& text) const;

  const Experiment& experiment_;
  std::map<std::pair<std::string, std::string>, std::optional<InputFile>> named_;  // by key and text
  std::map<const Choices*, InputList> files_;
  std::map<std::string, Stamps> stamps_;
  std::map<std::string, std::string> fingerprint_;
};

// From all inputs except code: twelve hexadecimal digits, the first a letter so that tables keep it as text.
std::vector<std::string> run_ids(const Experiment& experiment, InputFiles& files);

// A folder, or a hub id's in the local Hugging Face cache (noted as inputs of the run); other texts are returned as a path.
// Throws InputError if an id has no weights.
std::string read_model_folder(const Params& p, const std::string& text);

// Scales arrivals by `factor`. Follow-ups keep their delays.
class RescaledTrace final : public TraceSource {
 public:
  RescaledTrace(std::unique_ptr<TraceSource> source, double factor) : source_(std::move(source)), factor_(factor) {}
  bool next(TraceRequest& request) override;
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  std::unique_ptr<TraceSource> source_;
  double factor_;
};

// A closed loop of `users`, without the trace's arrivals but with its think times.
class UserTrace final : public TraceSource {
 public:
  UserTrace(std::unique_ptr<TraceSource> source, std::int32_t users, Span ramp) : source_(std::move(source)), users_(users), ramp_(ramp) {}
  bool next(TraceRequest& request) override { return source_->next(request); }
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] ClosedLoop closed_loop() const override {
    ClosedLoop loop = source_->closed_loop();
    loop.concurrency = users_;
    loop.ramp = ramp_;
    return loop;
  }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  std::unique_ptr<TraceSource> source_;
  std::int32_t users_;
  Span ramp_;
};

// Per second over the span of arrivals, of the first `limit` requests (0: all). Throws InputError without two distinct arrivals.
double mean_rate(TraceSource& source, std::uint64_t limit);

using OpenTrace = std::function<std::unique_ptr<TraceSource>()>;

struct TraceInput {
  OpenTrace open;
  std::function<std::unique_ptr<TraceSource>(std::uint64_t seed)> open_with;  // as drawn by another seed
  std::string remark;                                                         // for the result's note
  bool wants_perfetto = false;
  bool keeps_summary = false;  // no tables of requests or samples
};

// Reads `trace`, `output`, and the first request, to find errors early.
TraceInput read_trace(Params& p, std::uint64_t seed);
// A pipe can only be read once.
void refuse_pipe(const Params& p, const std::string& key);

}  // namespace kvlab
