#include "traces/formats.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

bool is_json(std::string_view line) { return line.substr(line.find_first_not_of(" \t")).starts_with('{'); }
bool has(std::string_view line, std::string_view word) { return line.find(word) != std::string_view::npos; }

}  // namespace

const std::vector<TraceFormat>& trace_formats() {
  static const std::vector<TraceFormat> formats{
      {"kvlab_csv", "arrival_ns,prompt_tokens,output_tokens,...",
       [](std::string_view s) { return !is_json(s) && has(s, "prompt_tokens") && has(s, "output_tokens"); }, read_kvlab_csv},
      {"kvlab_jsonl", R"({"arrival_ns":...,"prompt_tokens":...,"output_tokens":...})",
       [](std::string_view s) { return is_json(s) && has(s, "\"prompt_tokens\""); }, read_kvlab_jsonl},
      {"azure", "TIMESTAMP,ContextTokens,GeneratedTokens", [](std::string_view s) { return !is_json(s) && has(s, "ContextTokens"); },
       read_azure},
      {"bailian", R"({"chat_id":...,"parent_chat_id":...,"timestamp":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
       [](std::string_view s) { return is_json(s) && has(s, "\"chat_id\""); }, read_bailian},
      {"mooncake", R"({"timestamp":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
       [](std::string_view s) { return is_json(s) && (has(s, "\"input_length\"") || has(s, "\"input_tokens\"")); }, read_mooncake},
      {"burstgpt", "Timestamp,...,Request tokens,Response tokens,...",
       [](std::string_view s) { return !is_json(s) && has(s, "Request tokens"); }, read_burstgpt},
      {"vidur", "arrived_at,num_prefill_tokens,num_decode_tokens",
       [](std::string_view s) { return !is_json(s) && has(s, "num_prefill_tokens"); }, read_vidur},
      {"splitwise", "...,arrival_timestamp,...,prompt_size,token_size",
       [](std::string_view s) { return !is_json(s) && has(s, "prompt_size"); }, read_splitwise},
      {"llmservingsim", R"({"input_toks":...,"output_toks":...,"arrival_time_ns":...})",
       [](std::string_view s) { return is_json(s) && (has(s, "\"arrival_time_ns\"") || has(s, "\"input_toks\"")); }, read_llmservingsim},
  };
  return formats;
}

const TraceFormat& trace_format(const std::string& name) {
  std::vector<std::string> names;
  for (const TraceFormat& format : trace_formats()) {
    if (format.name == name) return format;
    names.push_back(format.name);
  }
  throw InputError("unknown trace format '" + name + "'" + suggestion(name, names));
}

namespace {

std::string_view first_line(LineReader& lines) {
  std::string_view first;
  if (!lines.next(first)) throw InputError(lines.name() + ": empty file; a trace has at least one request");
  lines.put_back();
  return first;
}

}  // namespace

const TraceFormat& sniff_format(LineReader& lines) {
  const std::string_view first = first_line(lines);
  std::vector<std::string> names;
  for (const TraceFormat& format : trace_formats()) {
    if (format.looks_like(first)) return format;
    names.push_back(format.name);
  }
  lines.fail("the first line " + quoted(first) + " is of no known trace format; set 'format' to one of " + join(names, ", "));
}

const TraceFormat& chosen_format(const std::string& name, LineReader& lines) {
  const TraceFormat& chosen = trace_format(name);
  if (!chosen.looks_like(first_line(lines))) return chosen;
  const TraceFormat& found = sniff_format(lines);
  if (&found != &chosen)
    lines.fail(fmt::format("the row is of format '{}', which is read otherwise than '{}'; set 'format: {}'", found.name, name, found.name));
  return chosen;
}

std::unique_ptr<RowReader> open_trace(const std::string& path, const std::string& format, const ReaderOptions& options) {
  auto lines = std::make_unique<LineReader>(path);
  const TraceFormat& found = format.empty() ? sniff_format(*lines) : chosen_format(format, *lines);
  return found.read(std::move(lines), options);
}

}  // namespace kvlab
