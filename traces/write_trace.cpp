#include "traces/write_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "base/ceil_div.h"
#include "base/error.h"
#include "base/text.h"
#include "traces/fact_columns.h"

namespace kvlab {

namespace {

class CsvWriter {
 public:
  void operator()(const TraceRequest& request, std::string& text) {
    if (is_first_) {
      has_facts_ = request.facts != nullptr;
      text += "arrival_ns,prompt_tokens,output_tokens,session,delay_ns,hash_tokens,hashes" + (has_facts_ ? fact_header() : "") + "\n";
    }
    is_first_ = false;
    if (!has_facts_ && request.facts != nullptr)
      throw InputError("the first request of this trace has no optional columns (client, class, ...) and a later one has: write .jsonl");
    auto out = std::back_inserter(text);
    if (!request.is_follow_up) fmt::format_to(out, "{}", ns(request.arrival));
    fmt::format_to(out, ",{},{},", request.prompt_tokens, request.output_tokens);
    if (request.session >= 0) fmt::format_to(out, "{}", request.session);
    text += ',';
    if (request.is_follow_up) fmt::format_to(out, "{}", ns(request.delay));
    if (request.hashes.empty())
      text += ",,";
    else
      fmt::format_to(out, ",{},{}", request.hash_tokens, fmt::join(request.hashes, " "));
    if (has_facts_) append_facts_csv(request.facts != nullptr ? *request.facts : RequestFacts{}, text);
    text += '\n';
  }

 private:
  bool is_first_ = true;
  bool has_facts_ = false;
};

class JsonlWriter {
 public:
  void operator()(const TraceRequest& request, std::string& text) {
    auto out = std::back_inserter(text);
    if (request.is_follow_up)
      fmt::format_to(out, "{{\"delay_ns\":{}", ns(request.delay));
    else
      fmt::format_to(out, "{{\"arrival_ns\":{}", ns(request.arrival));
    fmt::format_to(out, ",\"prompt_tokens\":{},\"output_tokens\":{}", request.prompt_tokens, request.output_tokens);
    if (request.session >= 0) fmt::format_to(out, ",\"session\":{}", request.session);
    if (!request.hashes.empty()) {
      fmt::format_to(out, ",\"hash_tokens\":{},\"hashes\":[{}]", request.hash_tokens, fmt::join(request.hashes, ","));
    }
    if (request.facts != nullptr) append_facts_json(*request.facts, text);
    text += "}\n";
  }
};

class MooncakeWriter {
 public:
  void operator()(const TraceRequest& request, std::string& text) {
    auto out = std::back_inserter(text);
    if (request.is_follow_up)
      fmt::format_to(out, "{{\"delay\":{}", milliseconds(request.delay));
    else
      fmt::format_to(out, "{{\"timestamp\":{}", milliseconds(Span(ns(request.arrival))));
    fmt::format_to(out, ",\"input_length\":{},\"output_length\":{}", request.prompt_tokens, request.output_tokens);
    if (request.session >= 0) fmt::format_to(out, ",\"session_id\":{}", request.session);
    if (!request.hashes.empty()) {
      const auto of_prompt = static_cast<std::size_t>(ceil_div(std::int64_t{request.prompt_tokens}, request.hash_tokens));
      if (request.hashes.size() < static_cast<std::size_t>(request.prompt_tokens / request.hash_tokens)) {
        throw InputError("the mooncake format names a prompt's content whole or not at all; write .jsonl instead");
      }
      fmt::format_to(out, ",\"block_size\":{},\"hash_ids\":[", request.hash_tokens);
      for (std::size_t i = 0; i < std::min(of_prompt, request.hashes.size()); ++i) {
        fmt::format_to(out, "{}{}", i == 0 ? "" : ",", ids_.try_emplace(request.hashes[i], ids_.size()).first->second);
      }
      text += ']';
    }
    text += "}\n";
  }

 private:
  static std::string milliseconds(Span span) {
    const std::int64_t us = (ns(span) + 500) / 1000;
    return us % 1000 == 0 ? fmt::format("{}", us / 1000) : fmt::format("{}.{:03}", us / 1000, us % 1000);
  }

  std::unordered_map<std::uint64_t, std::uint64_t> ids_;
};

std::string format_of_name(const std::string& path) {
  std::string name = path;
  for (const char* packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.size() - std::string_view(packed).size());
  }
  if (name.ends_with(".csv")) return "csv";
  if (name.ends_with(".jsonl")) return "jsonl";
  throw InputError(path + ": the name of a trace to write ends in .csv or .jsonl, and then in .gz or .zst to pack it");
}

const std::map<std::string, TraceWriter>& trace_writers() {
  static const std::map<std::string, TraceWriter> writers = {
      {"csv", CsvWriter()}, {"jsonl", JsonlWriter()}, {"mooncake", MooncakeWriter()}};
  return writers;
}

}  // namespace

std::vector<std::string> trace_writer_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : trace_writers()) names.push_back(name);
  return names;
}

TraceWriter make_trace_writer(const std::string& format) {
  const auto found = trace_writers().find(format);
  if (found == trace_writers().end())
    throw InputError("a trace cannot be written as '" + format + "'" + suggestion(format, trace_writer_names()));
  return found->second;
}

std::uint64_t write_trace(TraceSource& source, const std::string& path, const std::string& format) {
  if (source.closed_loop().concurrency > 0)
    throw InputError(path +
                     ": not written: in a closed loop a request arrives when another is done, so a trace of it has no arrivals to name");
  const TraceWriter writer = make_trace_writer(format.empty() ? format_of_name(path) : format);
  const std::unique_ptr<ByteSink> file = create_file(path);
  constexpr std::size_t kFlushBytes = std::size_t{1} << 18;
  std::string text;
  std::uint64_t num_requests = 0;
  for (TraceRequest request; source.next(request); ++num_requests) {
    writer(request, text);
    if (text.size() < kFlushBytes) continue;
    file->write(text);
    text.clear();
  }
  file->write(text);
  file->close();
  return num_requests;
}

}  // namespace kvlab
