#include "traces/formats.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvlab {

namespace {

std::string_view first_line(LineReader& lines) {
  std::string_view first;
  if (!lines.next(first)) throw InputError(lines.name() + ": empty file; a trace has at least one request");
  lines.put_back();
  return first;
}

}  // namespace

TraceFormats::TraceFormats(Params& p) : p_(p) {
  for (const auto& [name, entry] : TraceFormatRegistry::table_view()) formats_[name] = entry.make(p);
}

std::string TraceFormats::sniff(LineReader& lines, std::string_view first) const {
  for (const auto& [name, format] : formats_)
    if (format->recognises(first)) return name;
  lines.fail("the first line " + quoted(first) + " is of no known trace format; set 'format' to one of " +
             join(TraceFormatRegistry::names(), ", "));
}

std::string TraceFormats::find(const std::string& name, LineReader& lines) const {
  if (!name.empty() && !formats_.contains(name))
    throw InputError("unknown trace format '" + name + "'" + suggestion(name, TraceFormatRegistry::names()));
  const std::string_view first = first_line(lines);
  if (!name.empty() && !formats_.at(name)->recognises(first)) return name;
  const std::string found = sniff(lines, first);
  if (!name.empty() && found != name)
    lines.fail(fmt::format("the row is of format '{}', which is read otherwise than '{}'; set 'format: {}'", found, name, found));
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
      p_.fail_at(key, fmt::format("'{}' has a meaning for format '{}' only; this trace is '{}'", key, join(formats, "' and '"), name));
  }
}

std::unique_ptr<RowReader> TraceFormats::open(const std::string& path, const std::string& name, const ReaderOptions& options) const {
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
