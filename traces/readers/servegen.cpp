#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "traces/readers/readers.h"
#include "traces/readers/servegen_client.h"

namespace kvlab {

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
