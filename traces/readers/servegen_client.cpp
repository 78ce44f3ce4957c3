#include "traces/readers/servegen_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "traces/line_reader.h"
#include "traces/numbers.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTraceEnd = "-trace.csv";
constexpr std::string_view kChunk = "chunk-";

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

double number_of(const LineReader& lines, std::string_view column, std::string_view text) {
  double value = 0;
  if (!parse_real(std::string(text), value) || value < 0) lines.fail(column, quoted(text) + " is not a decimal number, 0 or more");
  return value;
}

// Whole seconds or tokens, also 600.0.
bool parse_whole(std::string_view text, std::uint64_t& value) { return parse_unsigned(without_zero_fraction(text), value); }

// timestamp,rate,cv,pattern,p1,p2 without header; empty pattern: no requests.
ServeGenWindow window_of(const LineReader& lines, const std::vector<std::string_view>& fields) {
  ServeGenWindow window;
  window.rate_per_s = number_of(lines, "rate", fields[1]);
  if (fields[3].empty() || window.rate_per_s == 0) return ServeGenWindow{};
  if (fields[3] != "Gamma" && fields[3] != "Weibull") lines.fail("pattern", quoted(fields[3]) + " is neither 'Gamma', 'Weibull' nor empty");
  window.gaps = fields[3] == "Gamma" ? ServeGenWindow::Gaps::kGamma : ServeGenWindow::Gaps::kWeibull;
  window.shape = number_of(lines, "p1", fields[4]);
  window.scale = number_of(lines, "p2", fields[5]);
  if (window.shape < 1e-3 || window.scale <= 0) lines.fail("p1", "the shape is below 0.001 or the scale is 0");
  return window;
}

void read_windows(const std::string& path, ServeGenClient& client) {
  LineReader lines(path);
  for (std::string_view line; lines.next(line);) {
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.size() != 6) lines.fail(fmt::format("{} fields; expected timestamp,rate,cv,pattern,p1,p2", fields.size()));
    if (client.windows.empty() && fields[0] == "timestamp") lines.fail("a header line; ServeGen's files have none: remove the line");
    std::uint64_t start = 0;
    if (!parse_whole(fields[0], start) || start > static_cast<std::uint64_t>(kMaxTraceNs / 1'000'000'000))
      lines.fail("timestamp", quoted(fields[0]) + " is not a whole number of seconds");
    if (!client.windows.empty() && static_cast<std::int64_t>(start) <= client.windows.rbegin()->first)
      lines.fail("timestamp", "not later than that of the line above");
    client.windows.emplace_hint(client.windows.end(), static_cast<std::int64_t>(start), window_of(lines, fields));
  }
}

// "{81: 0.00145, 90: 0.2}": tokens and probabilities. `fail` throws with the place.
template <class Fail>
ServeGenLengths lengths_of(std::string_view text, Fail&& fail) {
  ServeGenLengths lengths;
  double sum = 0;
  if (!text.starts_with('{') || !text.ends_with('}')) fail("is no '{tokens: probability, ...}'");
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view pair = text.substr(0, comma);
    const std::size_t colon = pair.find(':');
    const std::size_t from = pair.find_first_not_of(' ');
    double probability = -1;
    std::uint64_t tokens = 0;
    const bool is_pair = colon != std::string_view::npos && parse_whole(pair.substr(from, colon - from), tokens) &&
                         pair.find_first_not_of(' ', colon + 1) != std::string_view::npos &&
                         parse_real(std::string(pair.substr(pair.find_first_not_of(' ', colon + 1))), probability);
    if (!is_pair || probability < 0 || tokens > static_cast<std::uint64_t>(kMaxTokens)) fail(quoted(pair) + " is no 'tokens: probability'");
    lengths.tokens.push_back(static_cast<std::int32_t>(tokens));
    lengths.cumulative.push_back(sum += probability);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (!lengths.tokens.empty() && std::abs(sum - 1) > 1e-3) fail(fmt::format("its probabilities add up to {:g}, not 1", sum));
  return lengths;
}

nlohmann::json parsed(const std::string& path) {
  std::string text;
  const std::unique_ptr<ByteSource> bytes = open_bytes(path);
  std::array<char, 1 << 16> part{};
  for (std::size_t got = 0; (got = bytes->read(part.data(), part.size())) > 0;) text.append(part.data(), got);
  nlohmann::json all = nlohmann::json::parse(text, nullptr, false);
  if (all.is_discarded() || !all.is_object())
    throw InputError(path + ": is no JSON object {\"start in s\": {\"input_tokens\": \"{...}\", \"output_tokens\": \"{...}\"}}");
  return all;
}

// The distributions of one window; `fail` throws with the field.
ServeGenClient::Lengths lengths_in(const nlohmann::json& fields,
                                   const std::function<void(const std::string& field, const std::string&)>& fail) {
  const auto read = [&](const char* name) {
    if (!fields.is_object() || !fields.contains(name) || !fields[name].is_string()) fail(name, "missing, or no text");
    return lengths_of(fields[name].get_ref<const std::string&>(), [&](const std::string& message) { fail(name, message); });
  };
  return {read("input_tokens"), read("output_tokens")};
}

void read_lengths(const std::string& path, ServeGenClient& client, std::vector<std::string>& not_drawn) {
  const nlohmann::json all = parsed(path);
  for (const auto& [key, fields] : all.items()) {
    std::uint64_t start = 0;
    const auto fail = [&path, &window = key](const std::string& field, const std::string& message) {
      throw InputError(fmt::format("{}: window '{}', '{}': {}", path, window, field, message));
    };
    if (!parse_whole(key, start)) fail(key, "is not a whole number of seconds");
    ServeGenClient::Lengths lengths = lengths_in(fields, fail);
    for (const auto& [name, value] : fields.items())
      if (name != "input_tokens" && name != "output_tokens" && std::ranges::find(not_drawn, name) == not_drawn.end())
        not_drawn.push_back(name);
    if (!lengths.prompt.tokens.empty() && !lengths.output.tokens.empty())
      client.lengths.emplace(static_cast<std::int64_t>(start), std::move(lengths));
  }
}

}  // namespace

std::int32_t ServeGenLengths::at(double uniform) const {
  const auto found = std::ranges::upper_bound(cumulative, uniform * cumulative.back());
  const auto place = std::min<std::ptrdiff_t>(found - cumulative.begin(), static_cast<std::ptrdiff_t>(tokens.size()) - 1);
  return tokens[static_cast<std::size_t>(place)];
}

const ServeGenClient::Lengths* ServeGenClient::lengths_at(std::int64_t start_s) const {
  const auto after = lengths.upper_bound(start_s);
  return after == lengths.begin() ? nullptr : &std::prev(after)->second;
}

std::vector<std::int64_t> servegen_clients(const std::string& folder) {
  std::vector<std::int64_t> numbers;
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw InputError(folder + ": is no folder of ServeGen's chunk-N-trace.csv and chunk-N-dataset.json");
  for (const auto& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kChunk) || !name.ends_with(kTraceEnd)) continue;
    std::uint64_t number = 0;
    if (parse_unsigned(std::string_view(name).substr(kChunk.size(), name.size() - kChunk.size() - kTraceEnd.size()), number))
      numbers.push_back(static_cast<std::int64_t>(number));
  }
  std::ranges::sort(numbers);
  return numbers;
}

ServeGenClient read_servegen_client(const std::string& folder, std::int64_t number, std::vector<std::string>& not_drawn) {
  ServeGenClient client;
  client.number = number;
  read_windows(fmt::format("{}/chunk-{}-trace.csv", folder, number), client);
  read_lengths(fmt::format("{}/chunk-{}-dataset.json", folder, number), client, not_drawn);
  return client;
}

}  // namespace kvlab
