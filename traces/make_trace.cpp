#include "traces/make_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/open_error.h"
#include "base/random.h"
#include "base/text.h"
#include "traces/formats.h"
#include "traces/generator.h"
#include "traces/in_memory.h"
#include "traces/shaped_trace.h"

namespace kvlab {

namespace {

// A key that only some formats know is refused for the others: it would do nothing.
void only_for(const Params& p, const std::string& key, const std::vector<std::string>& formats, const std::string& found) {
  if (p.has(key) && std::ranges::find(formats, found) == formats.end())
    p.fail_at(key, fmt::format("'{}' has a meaning for format '{}' only; this trace is '{}'", key, join(formats, "' and '"), found));
}

// "a, b c" as words.
std::vector<std::string> words_of(std::string text) {
  std::ranges::replace(text, ',', ' ');
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

ReaderOptions read_options(Params& p) {
  ReaderOptions options;
  options.block_size =
      p.optional<std::int32_t>("block_size", 0, 1, 1 << 20, "mooncake: tokens per hash id; needed unless the rows say it; bailian: 16");
  options.block_tokens =
      p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "llmservingsim: tokens per content hash made of token ids");
  options.skip_failed = p.flag("skip_failed", false, "burstgpt: pass over (and count) requests without response");
  options.any_order = p.flag("sort", false, "sort by arrival; loads the whole trace");
  options.ignore_columns = words_of(p.text("ignore_columns", "", "columns to pass over that the format does not have, as 'a, b'"));
  return options;
}

struct FileKeys {
  std::string path;
  ReaderOptions options;
  std::size_t format = 0;  // 0: found out by the first line, else one more than its place among trace_formats()
  std::unique_ptr<ArrivalProcess> arrivals;
};

FileKeys read_file_keys(Params& p, std::uint64_t seed) {
  FileKeys keys;
  keys.path = p.text("file", "trace file; .gz and .zst are unpacked");
  if (std::error_code error; !p.is_describing() && !std::filesystem::exists(p.resolve_file(keys.path), error) && !error)
    p.fail_at("file", open_error(p.resolve_file(keys.path)));
  keys.options = read_options(p);
  std::vector<std::string> formats{"auto"};
  for (const TraceFormat& format : trace_formats()) formats.push_back(format.name);
  keys.format = p.choice("format", formats, 0, "of the file; auto looks at its first line");
  auto [name, inner] = p.named("arrival", "trace", "arrivals in place of the trace's own: " + join(arrival_names(), ", "));
  if (p.is_describing()) return keys;
  keys.options.uses_arrivals = name == "trace";
  keys.options.doubts_unit = !inner.has("scale");
  keys.arrivals = make_arrivals(name, inner, seed);
  return keys;
}

std::unique_ptr<TraceSource> open_file(const Params& p, const FileKeys& keys) {
  auto lines = std::make_unique<LineReader>(p.resolve_file(keys.path));
  const TraceFormat& format = keys.format == 0 ? sniff_format(*lines) : chosen_format(trace_formats()[keys.format - 1].name, *lines);
  only_for(p, "block_size", {"mooncake", "bailian"}, format.name);
  only_for(p, "block_tokens", {"llmservingsim"}, format.name);
  only_for(p, "skip_failed", {"burstgpt"}, format.name);
  std::unique_ptr<RowReader> reader = format.read(std::move(lines), keys.options);
  if (keys.options.uses_arrivals && !reader->has_arrivals())
    p.fail_at("arrival", "the trace has lengths only; give arrivals, for example 'arrival: {poisson: {rate_per_s: 2}}'");
  if (!keys.options.any_order) return reader;
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

// Each arrival moves by up to `most` either way, not before the start. Requests keep their order: the moved times are handed
// out in it, which moves none of them further. What varies is when requests come, not which of two comes first.
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

std::unique_ptr<TraceSource> make_trace(Params& p, std::uint64_t seed) {
  if (!p.is_describing() && p.has("file") == p.has("generate")) p.fail("'trace' needs either 'file: PATH' or 'generate: {...}'");
  const bool is_generated = p.has("generate");
  std::unique_ptr<TraceSource> source;
  TraceShape shape = read_shape(p);
  if (is_generated) {
    Params inner = p.child("generate", "generate");
    source = std::make_unique<GeneratedTrace>(inner, seed);
  } else {
    FileKeys keys = read_file_keys(p, seed);
    if (!p.is_describing()) source = open_file(p, keys);
    shape.name = keys.path;
    shape.arrivals = std::move(keys.arrivals);
  }
  const Span jitter = p.milliseconds(
      "jitter_ms", 0, 0, 3.6e6, "every arrival moves by up to this, either way, by the seed; requests keep their order; loads the trace");
  if (p.is_describing()) return nullptr;
  p.reject_unread();
  source = std::make_unique<ShapedTrace>(std::move(source), std::move(shape));
  if (jitter == Span{0}) return source;
  if (source->concurrency() > 0) p.fail_at("jitter_ms", "'jitter_ms' has no meaning in a closed loop: arrivals follow from completions");
  return jittered(std::move(source), jitter, seed);
}

}  // namespace kvlab
