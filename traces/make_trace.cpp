#include "traces/make_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "base/error.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/text.h"
#include "traces/arrivals.h"
#include "traces/formats.h"
#include "traces/in_memory.h"
#include "traces/public_traces.h"
#include "traces/trace.h"

namespace kvlab {

namespace {

// 0: no limit.
struct TraceShape {
  std::string name = "trace";                                 // for messages
  std::uint64_t offset = 0;                                   // skipped requests; the next arrival becomes 0
  std::uint64_t limit_requests = 0;                           // after these
  std::int32_t max_prompt_tokens = 0, max_output_tokens = 0;  // longer ones are cut and counted
  ArrivalProcess arrivals;                                    // empty: the trace's
};

constexpr const char* kNoArrival =
    ": no request arrives before the last stage ends: raise its 'rate_per_s', 'to_rate_per_s' or 'for_s' (of 'burst': lower 'every_s')";

// Skips and counts follow-ups of sessions that `offset` skipped. Cut prompts keep whole chunks' hashes.
class ShapedTrace final : public TraceSource {
 public:
  ShapedTrace(std::unique_ptr<TraceSource> source, TraceShape shape) : source_(std::move(source)), shape_(std::move(shape)) {}

  bool next(TraceRequest& request) override {
    if (shape_.limit_requests > 0 && num_given_ == shape_.limit_requests) return false;
    if (!is_past_offset_) {
      for (std::uint64_t i = 0; i < shape_.offset; ++i) {
        if (!source_->next(request))
          throw InputError(fmt::format("{}: 'offset: {}' leaves nothing: the trace has {} requests", shape_.name, shape_.offset, i));
      }
      is_past_offset_ = true;
    }
    do {
      if (!source_->next(request)) {
        if (num_given_ == 0 && shape_.offset == 0) throw InputError(shape_.name + kNoArrival);
        if (num_given_ == 0) throw InputError(fmt::format("{}: 'offset: {}' leaves nothing", shape_.name, shape_.offset));
        return false;
      }
      if (num_given_ > 0 || !request.is_follow_up) break;
      ++num_orphans_;
    } while (true);
    if (!request.is_follow_up && !arrive(request)) {
      if (num_given_ == 0) throw InputError(shape_.name + kNoArrival);
      return false;
    }
    if (stage_ != nullptr) give_class(request);
    cut(request);
    ++num_given_;
    return true;
  }
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] ClosedLoop closed_loop() const override { return shape_.arrivals.next ? shape_.arrivals.loop : source_->closed_loop(); }
  [[nodiscard]] std::string skipped() const override {
    std::string all = source_->skipped();
    const auto add = [&all](const std::string& what) { all += (all.empty() ? "" : "; ") + what; };
    if (num_cut_prompts_ > 0) add(fmt::format("{} prompts cut to {} tokens", num_cut_prompts_, shape_.max_prompt_tokens));
    if (num_cut_outputs_ > 0) add(fmt::format("{} outputs cut to {} tokens", num_cut_outputs_, shape_.max_output_tokens));
    if (num_orphans_ > 0) add(fmt::format("{} later turns left out with their session's start by 'offset'", num_orphans_));
    return all;
  }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  // False: no more arrivals.
  bool arrive(TraceRequest& request) {
    if (!first_arrival_) first_arrival_ = shape_.offset > 0 ? request.arrival : kStart;
    request.arrival = Time(request.arrival - *first_arrival_);
    if (shape_.arrivals.next) {
      const Arrival arrival = shape_.arrivals.next(request.arrival);
      request.arrival = arrival.at;
      stage_ = arrival.request_class;
    }
    return request.arrival != kNever;
  }
  // Replaces the trace's class.
  void give_class(TraceRequest& request) {
    if (!keeps_hashes()) facts_.clear();
    facts_.push_back(request.facts == nullptr ? RequestFacts{} : *request.facts);
    facts_.back().request_class = *stage_;
    request.facts = &facts_.back();
  }
  void cut(TraceRequest& request) {
    const auto keep_hashes = [&](std::int64_t count) {
      if (count < static_cast<std::int64_t>(request.hashes.size())) request.hashes = request.hashes.first(static_cast<std::size_t>(count));
      if (request.hashes.empty()) request.hash_tokens = 0;
    };
    if (shape_.max_output_tokens > 0 && request.output_tokens > shape_.max_output_tokens) {
      ++num_cut_outputs_;
      request.output_tokens = shape_.max_output_tokens;
      if (request.hash_tokens > 0) {  // the last hash may cover a partial prompt chunk
        const std::int64_t of_prompt = ceil_div(std::int64_t{request.prompt_tokens}, request.hash_tokens);
        const std::int64_t of_all = (std::int64_t{request.prompt_tokens} + request.output_tokens) / request.hash_tokens;
        keep_hashes(std::max(of_prompt, of_all));
      }
    }
    if (shape_.max_prompt_tokens > 0 && request.prompt_tokens > shape_.max_prompt_tokens) {
      ++num_cut_prompts_;
      request.prompt_tokens = shape_.max_prompt_tokens;
      if (request.hash_tokens > 0) keep_hashes(request.prompt_tokens / request.hash_tokens);
    }
  }

  std::unique_ptr<TraceSource> source_;
  TraceShape shape_;
  bool is_past_offset_ = false;
  std::deque<RequestFacts> facts_;     // with the class; all are kept if the source keeps its own
  const ClassName* stage_ = nullptr;   // of the last arrival
  std::optional<Time> first_arrival_;  // if `offset` > 0
  std::uint64_t num_given_ = 0, num_cut_prompts_ = 0, num_cut_outputs_ = 0, num_orphans_ = 0;
};

std::vector<std::string> words_of(std::string text) {
  std::ranges::replace(text, ',', ' ');
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Sets name and replaced arrivals in `shape`.
std::unique_ptr<TraceSource> open_file(Params& p, std::uint64_t seed, const TokenCounter& count_tokens, TraceShape& shape) {
  shape.name = p.text("file", "trace file; .gz and .zst are unpacked");
  const std::string path = p.is_describing() ? "" : p.resolve_file(shape.name);
  if (std::error_code error; !p.is_describing() && !std::filesystem::exists(path, error) && !error)
    p.fail_at("file", open_error(path) + public_trace_advice(shape.name));
  const TraceFormats formats(p);
  ReaderOptions options;
  options.seed = seed;
  options.count_tokens = count_tokens;
  options.any_order = p.flag("sort", false, "sort by arrival; loads the whole trace");
  options.ignore_columns = words_of(p.text("ignore_columns", "", "columns to pass over that the format does not have, as 'a, b'"));
  std::vector<std::string> names = TraceFormatRegistry::names();
  names.insert(names.begin(), "auto");
  const std::size_t format = p.choice("format", names, 0, "of the file; auto looks at its first line");
  auto [arrival, inner] = p.named("arrival", "trace", "arrivals in place of the trace's own: " + join(arrival_names(), ", "));
  if (p.is_describing()) return nullptr;
  options.uses_arrivals = arrival == "trace";
  options.doubts_unit = !inner.has("scale");
  shape.arrivals = make_arrivals(arrival, inner, seed);
  std::unique_ptr<RowReader> reader = formats.open(path, format == 0 ? "" : names[format], options);
  if (options.uses_arrivals && !reader->has_arrivals())
    p.fail_at("arrival", "the trace has lengths only; give arrivals, for example 'arrival: {poisson: {rate_per_s: 2}}'");
  if (!options.any_order) return reader;
  auto sorted = std::make_unique<InMemoryTrace>(std::move(reader));
  sorted->sort_by_arrival();
  return sorted;
}

TraceShape read_shape(Params& p) {
  TraceShape shape;
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  shape.offset = static_cast<std::uint64_t>(p.optional<std::int64_t>("offset", 0, 0, kMany, "requests to leave out at the start"));
  shape.limit_requests = static_cast<std::uint64_t>(p.optional<std::int64_t>("limit_requests", 0, 0, kMany, "requests to take; 0: all"));
  constexpr std::int32_t kLongest = (1 << 30) - 1;
  shape.max_prompt_tokens = p.optional<std::int32_t>("max_prompt_tokens", 0, 0, kLongest, "longer prompts are cut, and counted; 0: none");
  shape.max_output_tokens = p.optional<std::int32_t>("max_output_tokens", 0, 0, kLongest, "longer outputs are cut, and counted; 0: none");
  return shape;
}

// Moves arrivals by up to `most`, not before the start, keeping the order of requests.
std::unique_ptr<TraceSource> jittered(std::unique_ptr<TraceSource> source, Span most, std::uint64_t seed) {
  auto trace = std::make_unique<InMemoryTrace>(std::move(source));
  std::vector<std::size_t> roots;
  std::vector<Time> times;
  for (std::size_t i = 0; i < trace->size(); ++i) {
    const TraceRequest request = trace->at(i);
    if (request.is_follow_up) continue;
    const double move = 2.0 * Draw{seed, Purpose::kJitter, i}.uniform() - 1.0;
    const Span by(std::llround(move * static_cast<double>(ns(most))));
    roots.push_back(i);
    times.push_back(std::max(kStart, request.arrival + by));
  }
  std::sort(times.begin(), times.end());
  for (std::size_t i = 0; i < roots.size(); ++i) trace->set_arrival(roots[i], times[i]);
  return trace;
}

}  // namespace

std::unique_ptr<TraceSource> make_trace(Params& p, std::uint64_t seed, const TokenCounter& count_tokens) {
  if (!p.is_describing() && p.has("file") == p.has("generate")) {
    const std::vector<std::string> keys = p.keys();
    const auto file = std::find_if(keys.begin(), keys.end(), [](const std::string& key) { return key.find('.') != std::string::npos; });
    p.fail("'trace' needs either 'file: PATH' or 'generate: {...}'" +
           (file == keys.end() || p.has("file") ? "" : "; write 'trace: {file: " + *file + "}'"));
  }
  const bool is_generated = p.has("generate");
  std::unique_ptr<TraceSource> source;
  TraceShape shape = read_shape(p);
  if (is_generated) {
    Params inner = p.child("generate", "generate");
    source = generated_trace(inner, seed);
  } else {
    source = open_file(p, seed, count_tokens, shape);
  }
  const Span jitter = p.milliseconds(
      "jitter_ms", 0, 0, 3.6e6, "every arrival moves by up to this, either way, by the seed; requests keep their order; loads the trace");
  if (p.is_describing()) return nullptr;
  p.reject_unread();
  source = std::make_unique<ShapedTrace>(std::move(source), std::move(shape));
  if (jitter == Span{0}) return source;
  if (source->closed_loop().concurrency > 0)
    p.fail_at("jitter_ms", "'jitter_ms' has no meaning in a closed loop: arrivals follow from completions");
  return jittered(std::move(source), jitter, seed);
}

}  // namespace kvlab
