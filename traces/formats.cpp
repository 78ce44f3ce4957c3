#include "traces/formats.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file_kind.h"
#include "traces/logs/log_format.h"

namespace kvlab {

namespace {

std::string_view first_line(LineReader& lines) {
  std::string_view first;
  if (!lines.next(first)) throw InputError(lines.name() + ": empty file; a trace has at least one request");
  lines.put_back();
  return first;
}

// Hint if JSON is not one object per line; else "".
std::string shape_of_json(std::string_view first) {
  const std::size_t begin = first.find_first_not_of(" \t");
  const bool is_list = first[begin] == '[';
  const bool is_open = first[begin] == '{' && first.find('}') == std::string_view::npos;
  if (!is_list && !is_open) return "";
  return fmt::format(
      "{}, of no known trace format; formats of JSON rows have one object per line: jq -c '{}' FILE > OUT.jsonl writes them so",
      is_list ? "begins a JSON list" : "begins a JSON object over several lines", is_list ? ".[]" : ".");
}

// Throws if the file is a result for `kvlab validate`; `first` is the line read last. Consumes the rest.
void refuse_result_of_tool(LineReader& lines, std::string_view first) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  std::string text(first);
  text += '\n';
  for (std::string_view more = lines.next_bytes(); !more.empty() && text.size() < kMostBytes; more = lines.next_bytes()) text += more;
  const LogText log(std::move(text), lines.name());
  Params none = Params::empty("log");
  for (const auto& [name, entry] : LogFormatRegistry::table_view()) {
    if (!entry.make(none)->recognises(log)) continue;
    throw InputError(fmt::format(
        "{0}: is a result of a tool ({1}), and no trace; 'kvlab validate --requests {0} --against results/NAME' compares it with a run",
        lines.name(), entry.card.summary));
  }
}

}  // namespace

TraceFormats::TraceFormats(Params& p) : p_(p) {
  for (const auto& [name, entry] : TraceFormatRegistry::table_view()) formats_[name] = entry.make(p);
}

std::string TraceFormats::sniff(LineReader& lines, std::string_view head) const {
  for (const auto& [name, format] : formats_)  // before reading a line, which may be the whole file
    if (format->is_guessed && format->is_document && format->recognises(head)) return name;
  const std::string_view first = first_line(lines);
  for (const auto& [name, format] : formats_)
    if (format->is_guessed && !format->is_document && format->recognises(first)) return name;
  const std::string shown = quoted(first);
  const std::string shape = shape_of_json(first);
  refuse_result_of_tool(lines, first);
  if (!shape.empty()) lines.fail(shape);
  lines.fail("the first line " + shown + " is of no known trace format; set 'format' to one of " +
             join(TraceFormatRegistry::names(), ", "));
}

std::string TraceFormats::find(const std::string& name, LineReader& lines) const {
  if (!name.empty() && !formats_.contains(name))
    throw InputError("unknown trace format '" + name + "'" + suggestion(name, TraceFormatRegistry::names()));
  if (!name.empty() && (formats_.at(name)->is_document || !formats_.at(name)->is_guessed)) return name;
  const std::string head(lines.ahead());
  if (!name.empty() && !formats_.at(name)->recognises(first_line(lines))) return name;
  const std::string found = sniff(lines, head);
  if (!name.empty() && found != name)
    lines.fail(fmt::format("the row is of format '{}', which is read otherwise than '{}'; set 'format: {}'", found, name, found));
  return found;
}

std::string TraceFormats::format_of_folder(const std::string& path, const std::string& name) const {
  std::string found;
  for (const auto& [one, format] : formats_) {
    if (!format->recognises_folder(path) || (!name.empty() && one != name)) continue;
    if (!found.empty()) return "";
    found = one;
  }
  return found;
}

void TraceFormats::refuse_options_of_others(const std::string& name) const {
  std::map<std::string, std::vector<std::string>> known_to;
  for (const auto& [format, entry] : TraceFormatRegistry::table_view()) {
    std::vector<ParamDoc> options;
    Params described = Params::describing(format, options);
    entry.make(described);
    for (const ParamDoc& option : options) known_to[option.key].push_back(format);
  }
  for (const auto& [key, formats] : known_to) {
    if (p_.has(key) && std::ranges::find(formats, name) == formats.end())
      p_.fail_at(key, fmt::format("'{}' has a meaning for format '{}' only; this trace is '{}'{}", key, join(formats, "' and '"), name,
                                  key == "rate_per_s" ? "; for arrivals at a rate write 'arrival: {poisson: {rate_per_s: ...}}'" : ""));
  }
}

std::unique_ptr<RowReader> TraceFormats::open(const std::string& path, const std::string& name, const ReaderOptions& options) const {
  if (special_file(path) == "a directory") {
    const std::string of_folder = format_of_folder(path, name);
    if (!of_folder.empty()) {
      refuse_options_of_others(of_folder);
      return formats_.at(of_folder)->read_folder(path, options);
    }
  }
  auto lines = std::make_unique<LineReader>(path);
  const std::string found = find(name, *lines);
  refuse_options_of_others(found);
  return read(std::move(lines), found, options);
}

std::unique_ptr<RowReader> open_trace(const std::string& path, const std::string& format, const ReaderOptions& options) {
  Params defaults = Params::empty("trace");
  return TraceFormats(defaults).open(path, format, options);
}

}  // namespace kvlab
