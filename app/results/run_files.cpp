#include "app/results/run_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

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

void remove_quietly(const fs::path& folder, const std::set<std::string>& names) noexcept {
  try {
    if (kind_of(folder) == PathKind::kFolder) remove_files(folder, names, "manifest.json");
  } catch (const std::exception&) {  // left to the next sweep
  }
}

struct Instant {  // ns, or "" if never reached
  Time at;
};

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

  void close() {
    file_.write("\n]}\n");
    file_.close();
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

}  // namespace kvlab

template <>
struct fmt::formatter<kvlab::Instant> : fmt::formatter<std::int64_t> {
  template <class Context>
  auto format(kvlab::Instant i, Context& context) const {
    return i.at == kvlab::kNever ? context.out() : fmt::formatter<std::int64_t>::format(kvlab::ns(i.at), context);
  }
};

namespace kvlab {

RunFiles::RunFiles(fs::path runs, std::string id, const std::set<std::string>& tables, bool times_policy)
    : runs_(std::move(runs)),
      fresh_(runs_ / fmt::format("{}{}-{}", kBeingWritten, id, ::getpid())),
      id_(std::move(id)),
      times_policy_(times_policy) {
  std::error_code error;
  const bool is_new = fs::create_directory(fresh_, error);
  if (error) throw std::runtime_error(fresh_.string() + ": cannot be written: " + error.message());
  if (!is_new) throw std::runtime_error(fresh_.string() + ": is there already; remove it");
  struct Guard {  // removes all on failure, such as a full disk
    const fs::path& fresh;
    const std::set<std::string>& names;
    bool is_done = false;
    ~Guard() {
      if (!is_done) remove_quietly(fresh, names);
    }
  } guard{fresh_, names_};
  add_file("manifest.json", nlohmann::json{{"kvlab_run", kRunFormat}, {"run", id_}, {"input_key", ""}, {"state", "being written"}}.dump());
  guard.is_done = !tables.contains("requests.csv");
  if (guard.is_done) return;
  const auto open = [&](const char* name, const std::string& columns) {
    auto file = std::make_unique<TextFile>(make(name));
    file->write(columns);
    return file;
  };
  requests_ = open("requests.csv", std::string(kRequestColumns) + (times_policy_ ? kPolicyColumns : "") + "\n");
  timeline_ = open("timeline.csv", kTimelineColumns);
  if (tables.contains("transfers.csv")) transfers_ = open("transfers.csv", kTransferColumns);
  if (tables.contains("request_groups.csv")) groups_ = open("request_groups.csv", kGroupColumns);
  if (tables.contains("trace.json")) perfetto_ = std::make_unique<PerfettoFile>(make("trace.json"));
  guard.is_done = true;
}

RunFiles::~RunFiles() { remove_quietly(fresh_, names_); }

fs::path RunFiles::make(const std::string& name) {
  names_.insert(name);
  return fresh_ / name;
}

void RunFiles::request(const RequestRecord& r) {
  if (!requests_) return;
  requests_->print("{},{},{},", id_, r.number, r.replica);
  if (r.session >= 0) requests_->print("{}", r.session);
  requests_->print(",{},{},{},{},{},{},{},{},{},{},{}", Instant{r.arrival}, Instant{r.queued}, Instant{r.scheduled}, Instant{r.first_token},
                   Instant{r.last_token}, r.prompt_tokens, r.output_tokens, r.hit_tokens, r.preemptions, r.recomputed_tokens,
                   outcome_name(r.outcome));
  if (times_policy_) requests_->print(",{},{}", to_span(r.prefill_policy).count(), to_span(r.decode_policy).count());
  requests_->write("\n");
  if (groups_) write_groups(r);
  if (perfetto_) perfetto_->request(r);
}

void RunFiles::write_groups(const RequestRecord& r) {
  const bool has_client = has_fact(r.facts, Fact::kClient), has_class = has_fact(r.facts, Fact::kClass);
  if (!has_client && !has_class) return;
  groups_->write(csv_line({id_, std::to_string(r.number), has_client ? std::to_string(r.facts->client) : "",
                           has_class ? std::string(r.facts->request_class.text()) : ""}));
}

void RunFiles::sample(const TimelineSample& s) {
  if (!timeline_) return;
  timeline_->print("{},{},{},{},{},{},{},{},{},{},{}\n", id_, s.replica, ns(s.at), s.running, s.waiting, s.swapped, s.used_blocks,
                   s.cached_blocks, s.free_blocks, s.prompt_tokens, s.output_tokens);
  if (perfetto_) perfetto_->sample(s);
}

void RunFiles::step(const InFlightStep& step, const ReplicaState& state) { perfetto_->step(step, state); }

void RunFiles::event(const EventRecord& event) {
  if (perfetto_) perfetto_->event(event);
}

void RunFiles::transfer(const TransferRecord& t) {
  if (transfers_)
    transfers_->print("{},{},{},{},{},{},{},{},{},{}\n", id_, t.request, t.from, t.to, t.tokens, t.bytes, t.calls, ns(t.ready), ns(t.asked),
                      ns(t.end));
  if (perfetto_) perfetto_->transfer(t);
}

void RunFiles::add_file(const std::string& name, const std::string& text) {
  TextFile file(make(name));
  file.write(text);
  file.close();
}

// In pieces: fs::copy_file reports a full disk as "Input/output error".
void RunFiles::copy_file(const std::string& name, const fs::path& from) {
  TextFile file(make(name));
  std::ifstream stream(from, std::ios::binary);
  if (!stream) throw std::runtime_error(open_error(from.string()));
  std::string piece(std::size_t{1} << 20, '\0');
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    file.write(std::string_view(piece).substr(0, static_cast<std::size_t>(stream.gcount())));
  }
  file.close();
}

namespace {

void keep_other_files(const fs::path& earlier, const fs::path& target, const std::set<std::string>& names) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(earlier))
    if (!names.contains(entry.path().filename().string())) others.push_back(entry.path());
  for (const fs::path& other : others)
    if (kind_of(target / other.filename()) == PathKind::kNothing) fs::rename(other, target / other.filename());
}

}  // namespace

void RunFiles::commit(nlohmann::ordered_json manifest) {
  for (TextFile* const file : {requests_.get(), timeline_.get(), transfers_.get(), groups_.get()})
    if (file != nullptr) file->close();
  if (perfetto_) perfetto_->close();
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  std::vector<fs::path> written{fresh_ / "manifest.json"};
  for (const std::string& name : names_) {
    if (name == "manifest.json" || name == kFreshManifest) continue;
    files[name] = digest_of_file(fresh_ / name);
    written.push_back(fresh_ / name);
  }
  manifest["files"] = files;
  add_file(kFreshManifest, manifest.dump(2) + "\n");
  fs::rename(fresh_ / kFreshManifest, fresh_ / "manifest.json");
  sync_folder_of(written, fresh_);
  const fs::path target = runs_ / id_;
  const bool is_first = kind_without_link(target) == PathKind::kNothing;
  const std::set<std::string> earlier = is_first ? std::set<std::string>{} : read_run_manifest(target).file_names();
  exchange_folders(fresh_, target);
  if (is_first) return;
  keep_other_files(fresh_, target, earlier);
  remove_files(fresh_, earlier, "manifest.json");
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
