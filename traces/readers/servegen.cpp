#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "traces/line_reader.h"
#include "traces/numbers.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

struct ServeGenLengths {
  std::vector<std::int32_t> tokens;
  std::vector<double> cumulative;
  // `uniform` in [0, 1).
  [[nodiscard]] std::int32_t at(double uniform) const {
    const auto found = std::ranges::upper_bound(cumulative, uniform * cumulative.back());
    const auto place = std::min<std::ptrdiff_t>(found - cumulative.begin(), static_cast<std::ptrdiff_t>(tokens.size()) - 1);
    return tokens[static_cast<std::size_t>(place)];
  }
};

// One window of a client.
struct ServeGenWindow {
  enum class Gaps : std::uint8_t { kNone, kGamma, kWeibull } gaps = Gaps::kNone;
  double rate_per_s = 0, shape = 1, scale = 1;
};

// chunk-N-trace.csv and chunk-N-dataset.json.
struct ServeGenClient {
  struct Lengths {
    ServeGenLengths prompt, output;
  };
  std::int64_t number = 0;
  std::map<std::int64_t, ServeGenWindow> windows;  // by start, s
  std::map<std::int64_t, Lengths> lengths;         // by start, s; only those with data
  // Last start up to `start_s`; may be null.
  [[nodiscard]] const Lengths* lengths_at(std::int64_t start_s) const {
    const auto after = lengths.upper_bound(start_s);
    return after == lengths.begin() ? nullptr : &std::prev(after)->second;
  }
};

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

// `fail` throws with the field.
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

// Ascending.
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

// Throws InputError with file:line. `not_drawn`: other data fields.
ServeGenClient read_servegen_client(const std::string& folder, std::int64_t number, std::vector<std::string>& not_drawn) {
  ServeGenClient client;
  client.number = number;
  read_windows(fmt::format("{}/chunk-{}-trace.csv", folder, number), client);
  read_lengths(fmt::format("{}/chunk-{}-dataset.json", folder, number), client, not_drawn);
  return client;
}

}  // namespace

namespace {

// ServeGen (Xiang et al., NSDI 2026, arXiv 2505.09999; github.com/alibaba/ServeGen): per client, rates and gaps in ten-minute windows,
// lengths in six-hour windows. Sends rate x length requests per window (the fraction by chance), gaps scaled to fill it with the last
// pause. Prompt and output lengths are independent.
class ServeGen final : public RowReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : start(p.seconds("start_s", 0, 0, 1e8, "servegen: from here on, rounded down to a window")),
          duration(p.seconds("duration_s", 0, 0, 1e8, "servegen: so long, rounded up to a window; 0: to the end of the data")),
          rate_per_s(p.optional<double>("rate_per_s", 0, 0, 1e6, "servegen: of all clients in each window with requests; 0: as recorded")) {
    }
    Span start, duration;
    double rate_per_s;
  };
  static bool recognises(std::string_view /*line*/) { return false; }
  static bool recognises_folder(const std::string& path) { return !servegen_clients(path).empty(); }
  ServeGen(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own) : ServeGen(lines->name(), options, own) {
    throw InputError(lines->name() + ": is a file; 'format: servegen' reads a folder with chunk-N-trace.csv and chunk-N-dataset.json");
  }
  ServeGen(const std::string& folder, const ReaderOptions& options, const Options& own)
      : RowReader(options, "timestamp", 0), own_(own), place_(folder) {
    for (const std::int64_t number : servegen_clients(folder)) clients_.push_back(read_servegen_client(folder, number, not_drawn_));
    choose_windows();
  }

 private:
  // Folder and window.
  class Place final : public InputPlace {
   public:
    explicit Place(std::string folder) : folder_(std::move(folder)) {}
    [[nodiscard]] const std::string& name() const override { return folder_; }
    [[nodiscard]] std::int64_t line_number() const override { return window; }
    std::int64_t window = 0;

   private:
    std::string folder_;
  };
  struct Drawn {
    Time arrival;
    std::int32_t prompt_tokens = 0, output_tokens = 0;
    std::int64_t client = 0;
  };

  [[nodiscard]] const InputPlace& lines() const override { return place_; }

  void choose_windows() {
    std::set<std::int64_t> starts;
    for (const ServeGenClient& client : clients_)
      for (const auto& [start, window] : client.windows) starts.insert(start);
    std::vector<std::int64_t> all(starts.begin(), starts.end());
    if (all.size() < 2) throw InputError(place_.name() + ": fewer than two windows, so that their length is unknown");
    all.push_back(2 * all.back() - all[all.size() - 2]);  // assumed as long as the last
    const auto first_s = static_cast<std::int64_t>(to_s(own_.start));
    const std::int64_t end_s = own_.duration > Span{0} ? first_s + static_cast<std::int64_t>(std::ceil(to_s(own_.duration))) : all.back();
    for (std::size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i + 1] > first_s && all[i] < end_s) windows_.push_back({all[i], all[i + 1] - all[i]});
    if (windows_.empty())
      throw InputError(
          fmt::format("{}: no window from {} s on: the data covers {} to {} s", place_.name(), first_s, all.front(), all.back()));
  }

  bool read_row(TraceRequest& request) override {
    while (given_ == drawn_.size()) {
      if (next_window_ == windows_.size()) return false;
      draw_window(next_window_++);
    }
    const Drawn& drawn = drawn_[given_++];
    request.arrival = drawn.arrival;
    request.prompt_tokens = drawn.prompt_tokens;
    request.output_tokens = drawn.output_tokens;
    facts_ = {};
    facts_.client = drawn.client;
    request.facts = &facts_;
    return true;
  }

  void draw_window(std::size_t index) {
    drawn_.clear();
    given_ = 0;
    const auto [start_s, length_s] = windows_[index];
    place_.window = start_s;
    double recorded = 0;
    for (const ServeGenClient& client : clients_)
      if (const auto found = client.windows.find(start_s); found != client.windows.end()) recorded += found->second.rate_per_s;
    const double factor = own_.rate_per_s > 0 && recorded > 0 ? own_.rate_per_s / recorded : 1;
    for (const ServeGenClient& client : clients_) {
      const auto found = client.windows.find(start_s);
      if (found == client.windows.end() || found->second.gaps == ServeGenWindow::Gaps::kNone) continue;
      draw_client(client, found->second, factor);
    }
    std::ranges::stable_sort(drawn_, {}, &Drawn::arrival);
  }

  void draw_client(const ServeGenClient& client, const ServeGenWindow& window, double factor) {
    const auto [start_s, length_s] = windows_[next_window_ - 1];
    const auto key = static_cast<std::uint64_t>(client.number);
    const auto step = static_cast<std::uint64_t>(start_s);
    const std::uint64_t seed = options().seed;
    const double expected = window.rate_per_s * factor * static_cast<double>(length_s);
    if (expected > 1e8) place_.fail("rate", fmt::format("{:g} requests in one window; lower 'rate_per_s'", expected));
    const bool rounds_up = Draw{seed, Purpose::kSession, key, step}.uniform() < expected - std::floor(expected);
    const auto num_requests = static_cast<std::uint64_t>(expected) + (rounds_up ? 1 : 0);
    const ServeGenClient::Lengths* const lengths = client.lengths_at(start_s);
    if (lengths == nullptr) {
      for (std::uint64_t i = 0; i < num_requests; ++i) count("requests of windows without lengths left out");
      return;
    }
    std::vector<double> times;
    double sum = 0;
    for (std::uint64_t i = 0; i <= num_requests; ++i) {
      const Draw draw{seed, Purpose::kArrival, key, step, i};
      times.push_back(sum += window.gaps == ServeGenWindow::Gaps::kGamma ? draw.gamma(window.shape, window.scale)
                                                                         : draw.weibull(window.shape, window.scale));
    }
    for (std::uint64_t i = 0; i < num_requests; ++i) {
      const double after_s = sum > 0 ? times[i] / sum * static_cast<double>(length_s) : 0;
      const std::int32_t prompt = lengths->prompt.at(Draw{seed, Purpose::kPromptLength, key, step, i}.uniform());
      const std::int32_t output = lengths->output.at(Draw{seed, Purpose::kOutputLength, key, step, i}.uniform());
      if (prompt == 0 || output == 0) count("drawn lengths of 0 tokens, taken as 1");
      const Span since = from_seconds(static_cast<double>(start_s - windows_.front().start_s) + after_s);
      drawn_.push_back({kStart + since, std::max(prompt, 1), std::max(output, 1), client.number});
    }
  }

  [[nodiscard]] std::string origin() const override {
    std::string text =
        fmt::format("requests drawn from the distributions of {} clients of ServeGen, by the seed; nothing is shared", clients_.size());
    if (!not_drawn_.empty()) text += "; not drawn: " + join(not_drawn_, ", ");
    return text;
  }

  struct Window {
    std::int64_t start_s = 0, length_s = 0;
  };
  Options own_;
  Place place_;
  std::vector<ServeGenClient> clients_;
  std::vector<std::string> not_drawn_;
  std::vector<Window> windows_;
  std::size_t next_window_ = 0;
  std::vector<Drawn> drawn_;  // of one window
  std::size_t given_ = 0;
  RequestFacts facts_;
};

KVLAB_REGISTER_TRACE(ServeGen, "servegen", "a folder: chunk-N-trace.csv (timestamp,rate,cv,pattern,p1,p2) and chunk-N-dataset.json",
                     "ServeGen: Xiang et al. 2025, arXiv:2505.09999");

}  // namespace

}  // namespace kvlab
