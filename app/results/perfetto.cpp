#include "app/results/perfetto.h"

#include "serving/replica_state.h"

namespace kvlab {

namespace {

constexpr int kStepTrack = 1;

double us(Time t) { return static_cast<double>(ns(t)) * 1e-3; }

const char* event_title(RequestEvent event) {
  switch (event) {
    case RequestEvent::kPreempted:
      return "preempted";
    case RequestEvent::kSwappedOut:
      return "swapped out";
    case RequestEvent::kSwappedIn:
      return "swapped in";
    case RequestEvent::kExported:
      return "ready to leave";
    case RequestEvent::kImported:
      return "KV arrived of";
    case RequestEvent::kRejected:
      return "rejected";
    default:
      return nullptr;  // shown by the request's lifetime
  }
}

}  // namespace

PerfettoFile::PerfettoFile(const std::filesystem::path& path) : file_(path) {
  file_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
}

void PerfettoFile::begin_entry() {
  if (!is_first_) file_.write(",\n");
  is_first_ = false;
}

void PerfettoFile::name_replica(std::uint32_t replica) {
  if (!named_.insert(replica).second) return;
  begin_entry();
  file_.print(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"replica {}"}}}})", replica, replica);
  begin_entry();
  file_.print(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"steps"}}}})", replica, kStepTrack);
}

void PerfettoFile::step(const InFlightStep& s, const ReplicaState& state) {
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
  begin_entry();
  file_.print(R"({{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f},)", replica, kStepTrack,
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

void PerfettoFile::event(const EventRecord& e) {
  const char* const title = event_title(e.event);
  if (title == nullptr) return;
  name_replica(e.replica);
  begin_entry();
  file_.print(R"({{"ph":"i","s":"p","pid":{},"tid":{},"name":"{} {}","ts":{:.3f}}})", e.replica, kStepTrack, title, e.request, us(e.at));
}

void PerfettoFile::request(const RequestRecord& r) {
  if (r.arrival == kNever || r.last_token == kNever) return;
  name_replica(r.replica);
  const auto slice = [&](const char* name, Time from, Time to) {
    if (from == kNever || to == kNever) return;
    begin_entry();
    file_.print(R"({{"ph":"b","cat":"request","id":{},"pid":{},"tid":0,"name":"{}","ts":{:.3f},)", r.number, r.replica, name, us(from));
    file_.print(R"("args":{{"request":{},"prompt_tokens":{},"output_tokens":{},"hit_tokens":{},"preemptions":{}}}}})", r.number,
                r.prompt_tokens, r.output_tokens, r.hit_tokens, r.preemptions);
    begin_entry();
    file_.print(R"({{"ph":"e","cat":"request","id":{},"pid":{},"tid":0,"name":"{}","ts":{:.3f}}})", r.number, r.replica, name, us(to));
  };
  slice("request", r.arrival, r.last_token);
  slice("waiting", r.arrival, r.scheduled);
  slice("prefill", r.scheduled, r.first_token);
  slice("decode", r.first_token, r.last_token);
}

void PerfettoFile::sample(const TimelineSample& s) {
  name_replica(s.replica);
  begin_entry();
  file_.print(R"({{"ph":"C","pid":{},"name":"requests","ts":{:.3f},"args":{{"running":{},"waiting":{},"swapped":{}}}}})", s.replica,
              us(s.at), s.running, s.waiting, s.swapped);
  begin_entry();
  file_.print(R"({{"ph":"C","pid":{},"name":"KV blocks","ts":{:.3f},"args":{{"used":{},"cached":{}}}}})", s.replica, us(s.at),
              s.used_blocks, s.cached_blocks);
}

// On the fetching replica.
void PerfettoFile::transfer(const TransferRecord& t) {
  name_replica(t.to);
  begin_entry();
  file_.print(R"({{"ph":"b","cat":"transfer","id":{},"pid":{},"tid":0,"name":"KV from {}","ts":{:.3f},)", t.request, t.to, t.from,
              us(t.asked));
  file_.print(R"("args":{{"request":{},"tokens":{},"bytes":{},"calls":{}}}}})", t.request, t.tokens, t.bytes, t.calls);
  begin_entry();
  file_.print(R"({{"ph":"e","cat":"transfer","id":{},"pid":{},"tid":0,"name":"KV from {}","ts":{:.3f}}})", t.request, t.to, t.from,
              us(t.end));
}

void PerfettoFile::close() {
  file_.write("\n]}\n");
  file_.close();
}

}  // namespace kvlab
