#include "app/results/run_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "base/config/param_reader.h"
#include "base/csv.h"
#include "base/read_file.h"
#include "serving/replica_state.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// The run's id and the process number follow.
constexpr const char* kBeingWritten = ".new-";

constexpr const char* kRequestColumns =
    "run,request,replica,session,arrival_ns,queued_ns,scheduled_ns,first_token_ns,last_token_ns,prompt_tokens,output_tokens,hit_tokens,"
    "preemptions,recomputed_tokens,state";
constexpr const char* kPolicyColumns = ",prefill_policy_ns,decode_policy_ns";
constexpr const char* kTimelineColumns =
    "run,replica,time_ns,running,waiting,swapped,used_blocks,cached_blocks,free_blocks,prompt_tokens,output_tokens\n";

constexpr const char* kGroupColumns = "run,request,client,class\n";
constexpr const char* kTransferColumns = "run,request,from,to,tokens,bytes,calls,ready_ns,asked_ns,end_ns\n";

void keep_other_files(const fs::path& earlier, const fs::path& target, const std::set<std::string>& names) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(earlier))
    if (!names.contains(entry.path().filename().string())) others.push_back(entry.path());
  for (const fs::path& other : others)
    if (kind_of(target / other.filename()) == PathKind::kNothing) fs::rename(other, target / other.filename());
}

void remove_quietly(const fs::path& folder, const std::set<std::string>& names) noexcept {
  try {
    if (kind_of(folder) == PathKind::kFolder) remove_files(folder, names, "manifest.json");
  } catch (const std::exception&) {  // left to the next sweep
  }
}

constexpr int kStepTrack = 1;

double us(Time t) { return static_cast<double>(ns(t)) * 1e-3; }

// Others are shown by the request's lifetime.
constexpr std::initializer_list<Named<RequestEvent>> kEventTitles{
    {"preempted", RequestEvent::kPreempted},     {"swapped out", RequestEvent::kSwappedOut}, {"swapped in", RequestEvent::kSwappedIn},
    {"ready to leave", RequestEvent::kExported}, {"KV arrived of", RequestEvent::kImported}, {"rejected", RequestEvent::kRejected}};

}  // namespace

// trace.json for ui.perfetto.dev ("Trace Event Format", Google, 2016). Each replica is a process with steps, counters and instants;
// requests and KV transfers are asynchronous events. Constant memory.
class PerfettoFile {
 public:
  explicit PerfettoFile(const std::filesystem::path& path) : file_(path) { file_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"); }

  void step(const InFlightStep& s, const ReplicaState& state) {
    const std::uint32_t replica = state.memory().limits().replica;
    const Time start = to_time(s.start);
    name_replica(replica);
    std::int64_t prefill_tokens = 0, decodes = 0;
    for (const StepEntry& e : s.entries) {
      if (e.tokens == 1)
        ++decodes;
      else
        prefill_tokens += e.tokens;
    }
    entry(R"({{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f},)", replica, kStepTrack,
          prefill_tokens == 0 ? "decode"
          : decodes == 0      ? "prefill"
                              : "mixed",
          us(start), us(to_time(s.end)) - us(start));
    file_.print(
        R"("args":{{"step":{},"requests":{},"prefill_tokens":{},"decodes":{},"free_blocks":{},"waiting":{},"planned_us":{:.3f},"batch":")",
        s.number, s.entries.size(), prefill_tokens, decodes, state.free_blocks(), s.usage.waiting, us(to_time(s.planned)));
    for (const StepEntry& e : s.entries) file_.print("{}:{}@{} ", state.table()[e.request].number, e.tokens, e.computed_before);
    file_.write("\"}}");
  }

  void event(const EventRecord& e) {
    const std::string_view title = name_of(kEventTitles, e.event);
    if (title.empty()) return;
    name_replica(e.replica);
    entry(R"({{"ph":"i","s":"p","pid":{},"tid":{},"name":"{} {}","ts":{:.3f}}})", e.replica, kStepTrack, title, e.request, us(e.at));
  }

  void request(const RequestRecord& r) {
    if (r.arrival == kNever || r.last_token == kNever) return;
    name_replica(r.replica);
    const auto slice = [&](const char* name, Time from, Time to) {
      if (from == kNever || to == kNever) return;
      entry(R"({{"ph":"b","cat":"request","id":{},"pid":{},"tid":0,"name":"{}","ts":{:.3f},)", r.number, r.replica, name, us(from));
      file_.print(R"("args":{{"request":{},"prompt_tokens":{},"output_tokens":{},"hit_tokens":{},"preemptions":{}}}}})", r.number,
                  r.prompt_tokens, r.output_tokens, r.hit_tokens, r.preemptions);
      entry(R"({{"ph":"e","cat":"request","id":{},"pid":{},"tid":0,"name":"{}","ts":{:.3f}}})", r.number, r.replica, name, us(to));
    };
    slice("request", r.arrival, r.last_token);
    slice("waiting", r.arrival, r.scheduled);
    slice("prefill", r.scheduled, r.first_token);
    slice("decode", r.first_token, r.last_token);
  }

  void sample(const TimelineSample& s) {
    name_replica(s.replica);
    entry(R"({{"ph":"C","pid":{},"name":"requests","ts":{:.3f},"args":{{"running":{},"waiting":{},"swapped":{}}}}})", s.replica, us(s.at),
          s.running, s.waiting, s.swapped);
    entry(R"({{"ph":"C","pid":{},"name":"KV blocks","ts":{:.3f},"args":{{"used":{},"cached":{}}}}})", s.replica, us(s.at), s.used_blocks,
          s.cached_blocks);
  }

  // On the fetching replica.
  void transfer(const TransferRecord& t) {
    name_replica(t.to);
    entry(R"({{"ph":"b","cat":"transfer","id":{},"pid":{},"tid":0,"name":"KV from {}","ts":{:.3f},)", t.request, t.to, t.from, us(t.asked));
    file_.print(R"("args":{{"request":{},"tokens":{},"bytes":{},"calls":{}}}}})", t.request, t.tokens, t.bytes, t.calls);
    entry(R"({{"ph":"e","cat":"transfer","id":{},"pid":{},"tid":0,"name":"KV from {}","ts":{:.3f}}})", t.request, t.to, t.from, us(t.end));
  }

  // Its file, to be closed.
  TextFile& finish() {
    file_.write("\n]}\n");
    return file_;
  }

 private:
  void name_replica(std::uint32_t replica) {
    if (!named_.insert(replica).second) return;
    entry(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"replica {}"}}}})", replica, replica);
    entry(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"steps"}}}})", replica, kStepTrack);
  }

  template <class... Args>
  void entry(fmt::format_string<Args...> format, Args&&... args) {
    if (!is_first_) file_.write(",\n");
    is_first_ = false;
    file_.print(format, std::forward<Args>(args)...);
  }
  TextFile file_;
  bool is_first_ = true;
  std::set<std::uint32_t> named_;
};

FreshRun::FreshRun(fs::path runs, std::string id)
    : runs_(std::move(runs)), path_(runs_ / fmt::format("{}{}-{}", kBeingWritten, id, ::getpid())), id_(std::move(id)) {
  std::error_code error;
  const bool is_new = fs::create_directory(path_, error);
  if (error) throw std::runtime_error(path_.string() + ": cannot be written: " + error.message());
  if (!is_new) throw std::runtime_error(path_.string() + ": is there already; remove it");
}

FreshRun::FreshRun(FreshRun&& other) noexcept
    : runs_(std::move(other.runs_)), path_(std::exchange(other.path_, {})), id_(std::move(other.id_)), names_(std::move(other.names_)) {}

FreshRun::~FreshRun() {
  if (!path_.empty()) remove_quietly(path_, names_);
}

fs::path FreshRun::add(const std::string& name) {
  names_.insert(name);
  return path_ / name;
}

void FreshRun::rename(const std::string& from, const std::string& to) {
  fs::rename(path_ / from, path_ / to);
  names_.erase(from);
  names_.insert(to);
}

void FreshRun::sync() const {
  std::vector<fs::path> files;
  for (const std::string& name : names_) files.push_back(path_ / name);
  sync_folder_of(files, path_);
}

void FreshRun::publish() {
  const fs::path target = runs_ / id_;
  const bool is_first = kind_without_link(target) == PathKind::kNothing;
  const std::set<std::string> earlier = is_first ? std::set<std::string>{} : read_run_manifest(target).file_names();
  exchange_folders(path_, target);
  const fs::path replaced = std::exchange(path_, {});
  if (is_first) return;
  keep_other_files(replaced, target, earlier);
  remove_files(replaced, earlier, "manifest.json");
}

void publish_at_once(FreshRun run) {
  run.sync();
  run.publish();
}

RunFiles::RunFiles(fs::path runs, std::string id, const std::set<std::string>& tables, bool times_policy)
    : fresh_(std::move(runs), std::move(id)), times_policy_(times_policy) {
  add_file("manifest.json",
           nlohmann::json{{"kvlab_run", kRunFormat}, {"run", fresh_.id()}, {"input_key", ""}, {"state", "being written"}}.dump());
  if (!tables.contains("requests.csv")) return;
  const auto open = [&](const char* name, const std::string& columns) {
    auto file = std::make_unique<TextFile>(fresh_.add(name));
    file->write(columns);
    return file;
  };
  requests_ = open("requests.csv", std::string(kRequestColumns) + (times_policy_ ? kPolicyColumns : "") + "\n");
  timeline_ = open("timeline.csv", kTimelineColumns);
  if (tables.contains("transfers.csv")) transfers_ = open("transfers.csv", kTransferColumns);
  if (tables.contains("request_groups.csv")) groups_ = open("request_groups.csv", kGroupColumns);
  if (tables.contains("trace.json")) perfetto_ = std::make_unique<PerfettoFile>(fresh_.add("trace.json"));
}

RunFiles::~RunFiles() = default;

void RunFiles::request(const RequestRecord& r) {
  if (!requests_) return;
  const auto field_if = [&](bool is_there, std::int64_t value) { is_there ? requests_->field(value) : requests_->field(""); };
  requests_->field(id());
  requests_->field(r.number);
  requests_->field(r.replica);
  field_if(r.session >= 0, r.session);
  for (const Time at : {r.arrival, r.queued, r.scheduled, r.first_token, r.last_token}) field_if(at != kNever, ns(at));
  for (const std::int64_t count : {r.prompt_tokens, r.output_tokens, r.hit_tokens, r.preemptions, r.recomputed_tokens})
    requests_->field(count);
  requests_->field(outcome_name(r.outcome));
  if (times_policy_)
    for (const Picoseconds time : {r.prefill_policy, r.decode_policy}) requests_->field(to_span(time).count());
  requests_->end_line();
  if (groups_) write_groups(r);
  if (perfetto_) perfetto_->request(r);
}

void RunFiles::write_groups(const RequestRecord& r) {
  const bool has_client = has_fact(r.facts, Fact::kClient), has_class = has_fact(r.facts, Fact::kClass);
  if (!has_client && !has_class) return;
  groups_->write(csv_line({id(), std::to_string(r.number), has_client ? std::to_string(r.facts->client) : "",
                           has_class ? std::string(r.facts->request_class.text()) : ""}));
}

void RunFiles::sample(const TimelineSample& s) {
  if (!timeline_) return;
  timeline_->field(id());
  timeline_->field(s.replica);
  for (const std::int64_t value :
       {ns(s.at), s.running, s.waiting, s.swapped, s.used_blocks, s.cached_blocks, s.free_blocks, s.prompt_tokens, s.output_tokens})
    timeline_->field(value);
  timeline_->end_line();
  if (perfetto_) perfetto_->sample(s);
}

void RunFiles::step(const InFlightStep& step, const ReplicaState& state) { perfetto_->step(step, state); }

void RunFiles::event(const EventRecord& event) {
  if (perfetto_) perfetto_->event(event);
}

void RunFiles::transfer(const TransferRecord& t) {
  if (transfers_) {
    transfers_->field(id());
    transfers_->field(t.request);
    for (const std::int64_t value :
         {std::int64_t{t.from}, std::int64_t{t.to}, std::int64_t{t.tokens}, t.bytes, t.calls, ns(t.ready), ns(t.asked), ns(t.end)})
      transfers_->field(value);
    transfers_->end_line();
  }
  if (perfetto_) perfetto_->transfer(t);
}

void RunFiles::add_file(const std::string& name, const std::string& text) {
  TextFile file(fresh_.add(name));
  file.write(text);
  close(name, &file);
}

// In pieces: fs::copy_file reports a full disk as "Input/output error".
void RunFiles::copy_file(const std::string& name, const fs::path& from) {
  TextFile file(fresh_.add(name));
  std::ifstream stream(from, std::ios::binary);
  if (!stream) throw std::runtime_error(open_error(from.string()));
  std::string piece(std::size_t{1} << 20, '\0');
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    file.write(std::string_view(piece).substr(0, static_cast<std::size_t>(stream.gcount())));
  }
  close(name, &file);
}

// file: may be null.
void RunFiles::close(const std::string& name, TextFile* file) {
  if (file == nullptr) return;
  file->close();
  digests_[name] = file->digest();
}

FreshRun RunFiles::finish(nlohmann::ordered_json manifest) {
  close("requests.csv", requests_.get());
  close("timeline.csv", timeline_.get());
  close("transfers.csv", transfers_.get());
  close("request_groups.csv", groups_.get());
  if (perfetto_) close("trace.json", &perfetto_->finish());
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, digest] : digests_)
    if (name != "manifest.json") files[name] = digest;
  manifest["files"] = files;
  add_file(kFreshManifest, manifest.dump(2) + "\n");
  fresh_.rename(kFreshManifest, "manifest.json");
  return std::move(fresh_);
}

bool is_leftover(const fs::path& folder) {
  if (!folder.filename().string().starts_with(kBeingWritten) || kind_of(folder) != PathKind::kFolder) return false;
  if (read_run_manifest(folder).is_ours()) return true;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const bool is_started = entry.path().filename() == "manifest.json" && fs::file_size(entry.path(), ignored) == 0;
    if (!is_started) return false;
  }
  return true;
}

std::size_t remove_leftovers(const fs::path& runs) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(runs))
    if (is_leftover(entry.path())) found.push_back(entry.path());
  for (const fs::path& folder : found) {
    const RunManifest manifest = read_run_manifest(folder);
    const fs::path run = runs / manifest.id;  // `folder` may be the replaced run
    if (manifest.is_finished && kind_of(run) == PathKind::kFolder) keep_other_files(folder, run, manifest.file_names());
    remove_files(folder, manifest.file_names(), "manifest.json");
  }
  return found.size();
}

std::string summary_csv(const std::string& run_id, std::uint64_t seed, const std::vector<Fields>& rows) {
  std::string text;
  for (const Fields& fields : rows) {
    std::vector<std::string> header{"run", "seed"}, row{run_id, std::to_string(seed)};
    for (const auto& [column, value] : fields) {
      header.push_back(column);
      row.push_back(value);
    }
    text += (text.empty() ? csv_line(header) : "") + csv_line(row);
  }
  return text;
}

}  // namespace kvlab
