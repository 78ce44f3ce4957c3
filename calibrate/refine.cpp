#include "calibrate/refine.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/ceil_div.h"
#include "base/hash.h"

namespace kvlab {

namespace {

// A point of a line, or a line of a table.
struct Node {
  std::int64_t x = 0;
  double seconds = 0, spread = 0;
  double noise = 0;  // relative, of seconds
};

double log_of(std::int64_t x) { return std::log(static_cast<double>(x) + 1); }

// For b between a and c, in `x` or its logarithm.
double leave_out(const Node& a, const Node& b, const Node& c, bool over_logarithms) {
  const auto part = static_cast<double>(b.x - a.x) / static_cast<double>(c.x - a.x);
  double error = std::abs(a.seconds + (c.seconds - a.seconds) * part - b.seconds) / b.seconds;
  if (over_logarithms) {
    const double share = (log_of(b.x) - log_of(a.x)) / (log_of(c.x) - log_of(a.x));
    error = std::min(error, std::abs(a.seconds * std::pow(c.seconds / a.seconds, share) - b.seconds) / b.seconds);
  }
  constexpr double kStated = 0.01, kSure = 3;
  const double noise = std::sqrt(b.noise * b.noise + (a.noise * a.noise + c.noise * c.noise) / 4);
  return error > std::max({kStated, b.spread / 2, kSure * noise}) ? error : 0;
}

double share_of(const Node& a, const Node& b, const Node& from, const Node& to) {
  const double share = (log_of(b.x) - log_of(a.x)) / (log_of(to.x) - log_of(from.x));
  return share * share;
}

// Unmeasured, a multiple of a tile if possible.
std::optional<std::int64_t> middle(std::int64_t a, std::int64_t b, int tile_rows, const std::function<bool(std::int64_t)>& is_taken) {
  if (b - a <= std::max(1, tile_rows == 1 ? 1 : tile_rows)) return std::nullopt;
  auto x = std::clamp<std::int64_t>(std::llround(std::exp((log_of(a) + log_of(b)) / 2)) - 1, a + 1, b - 1);
  if (tile_rows > 1 && b - a > 2 * tile_rows) x = std::clamp<std::int64_t>(round_up(x, tile_rows), a + 1, b - 1);
  for (const std::int64_t at : {x, x + 1, x - 1})
    if (at > a && at < b && !is_taken(at)) return at;
  return std::nullopt;
}

struct LineGap {
  std::int64_t x = 0;
  double error = 0;
};

std::optional<LineGap> gap_of_line(const std::vector<Node>& line, int tile_rows, bool over_logarithms,
                                   const std::function<bool(std::int64_t)>& is_taken) {
  std::optional<LineGap> worst;
  for (std::size_t i = 0; i + 1 < line.size(); ++i) {
    double error = 0;
    if (i > 0)
      error = leave_out(line[i - 1], line[i], line[i + 1], over_logarithms) * share_of(line[i], line[i + 1], line[i - 1], line[i + 1]);
    if (i + 2 < line.size())
      error = std::max(
          error, leave_out(line[i], line[i + 1], line[i + 2], over_logarithms) * share_of(line[i], line[i + 1], line[i], line[i + 2]));
    if (error <= (worst ? worst->error : 0)) continue;
    if (const auto x = middle(line[i].x, line[i + 1].x, tile_rows, is_taken)) worst = LineGap{*x, error};
  }
  return worst;
}

using Lines = std::map<std::int64_t, std::map<std::int64_t, Node>>;  // first count -> second count

Lines lines_of(const CalibrationTable& table, const Measurements& measurements) {
  Lines lines;
  const double noise = measurements.noise_frac(table.name);
  for (const auto& e : measurements.of(table.name))
    if (e.role == Role::kFit) lines[e.at[0]][e.at[1]] = {e.at[1], e.measured.seconds, e.measured.spread_frac, noise / std::sqrt(e.times())};
  return lines;
}

std::vector<Node> nodes(const std::map<std::int64_t, Node>& line) {
  std::vector<Node> all;
  for (const auto& [x, node] : line) all.push_back(node);
  return all;
}

// At each second count shared with both neighbours.
std::optional<Gap> gap_between_lines(const CalibrationTable& table, const Lines& lines, const Measurements& measurements) {
  std::vector<std::int64_t> at;
  for (const auto& [x, line] : lines) at.push_back(x);
  const auto left_out = [&](std::size_t i) {
    double worst = 0;
    for (const std::int64_t y : table.coarse[1]) {
      const auto node = [&](std::size_t k) {
        const auto found = lines.at(at[k]).find(y);
        if (found == lines.at(at[k]).end()) return Node{};
        Node n = found->second;
        n.x = at[k];
        return n;
      };
      const Node a = node(i - 1), b = node(i), c = node(i + 1);
      if (a.seconds > 0 && b.seconds > 0 && c.seconds > 0) worst = std::max(worst, leave_out(a, b, c, false));
    }
    return worst;
  };
  const auto share = [&](std::size_t i, std::size_t from, std::size_t to) { return share_of({at[i]}, {at[i + 1]}, {at[from]}, {at[to]}); };
  std::optional<Gap> worst;
  for (std::size_t i = 0; i + 1 < at.size(); ++i) {
    double error = i > 0 ? left_out(i) * share(i, i - 1, i + 1) : 0;
    if (i + 2 < at.size()) error = std::max(error, left_out(i + 1) * share(i, i, i + 2));
    if (error <= (worst ? worst->error : 0)) continue;
    const auto is_taken = [&](std::int64_t x) { return measurements.has(table.name, {x, table.coarse[1].front()}); };
    if (const auto x = middle(at[i], at[i + 1], 1, is_taken)) worst = Gap{{*x, table.coarse[1].front()}, error};
  }
  return worst;
}

std::int64_t log_uniform(std::uint64_t draw, std::int64_t low, std::int64_t high) {
  const double u = static_cast<double>(draw >> 11) * 0x1p-53;
  return std::clamp<std::int64_t>(std::llround(std::exp(log_of(low) + u * (log_of(high) - log_of(low)))) - 1, low, high);
}

}  // namespace

std::size_t coarse_size(const CalibrationTable& table) {
  if (table.axes() == 1) return table.coarse[0].size();
  std::size_t n = 0;
  for (const std::int64_t a : table.coarse[0])
    for (const std::int64_t b : table.coarse[1]) n += table.has({a, b}) ? 1 : 0;
  return n;
}

std::vector<CalibrationPoint> unmeasured_points(const CalibrationTable& table, const Measurements& measurements) {
  std::vector<CalibrationPoint> points;
  const auto add = [&](const CalibrationPoint& at) {
    if (table.has(at) && !measurements.has(table.name, at)) points.push_back(at);
  };
  if (table.axes() == 1) {
    for (const std::int64_t a : table.coarse[0]) add({a, 0});
    return points;
  }
  std::set<std::int64_t> lines(table.coarse[0].begin(), table.coarse[0].end());
  for (const auto& e : measurements.of(table.name))
    if (e.role == Role::kFit) lines.insert(e.at[0]);
  for (const std::int64_t a : lines)
    for (const std::int64_t b : table.coarse[1]) add({a, b});
  return points;
}

std::vector<CalibrationPoint> held_out_points(const CalibrationTable& table, std::uint64_t seed) {
  std::uint64_t state = hash_combine(seed, 0xCA11B);
  for (const char c : table.name) state = hash_combine(state, static_cast<unsigned char>(c));
  const std::size_t wanted = std::max<std::size_t>(4, (coarse_size(table) + 3) / 4);
  std::vector<CalibrationPoint> points;
  for (std::uint64_t i = 0; i < 50 * wanted && points.size() < wanted; ++i) {
    CalibrationPoint at{log_uniform(hash_combine(state, 2 * i), table.coarse[0].front(), table.coarse[0].back()), 0};
    const std::uint64_t second = hash_combine(state, 2 * i + 1);
    if (table.axes() == 2) at[1] = log_uniform(second, table.coarse[1].front(), table.coarse[1].back());
    if (table.kind == CalibrationTable::Kind::kPolicy)
      at[1] = log_uniform(second, std::min<std::int64_t>(64, at[0]), std::min(4 * kLayoutTokens, at[0]));
    const auto& first = table.coarse[0];
    const bool is_coarse = std::find(first.begin(), first.end(), at[0]) != first.end() &&
                           (table.axes() == 1 || std::find(table.coarse[1].begin(), table.coarse[1].end(), at[1]) != table.coarse[1].end());
    if (is_coarse || !table.has(at) || std::find(points.begin(), points.end(), at) != points.end()) continue;
    points.push_back(at);
  }
  return points;
}

std::optional<Gap> widest_gap(const CalibrationTable& table, const Measurements& measurements, int tile_rows) {
  const Lines lines = lines_of(table, measurements);
  const bool over_bytes = table.kind == CalibrationTable::Kind::kPolicy || table.kind == CalibrationTable::Kind::kCopy;
  if (table.axes() == 1) {
    std::vector<Node> line;
    for (const auto& [x, points] : lines)
      if (points.contains(0)) line.push_back({x, points.at(0).seconds, points.at(0).spread, points.at(0).noise});
    const bool in_tiles = table.kind == CalibrationTable::Kind::kOp && table.axis == ProfileOp::Axis::kTokens;
    const auto is_taken = [&](std::int64_t x) { return measurements.has(table.name, {x, 0}); };
    const auto gap = gap_of_line(line, in_tiles ? tile_rows : 1, over_bytes, is_taken);
    return gap ? std::optional(Gap{{gap->x, 0}, gap->error}) : std::nullopt;
  }
  std::optional<Gap> worst = gap_between_lines(table, lines, measurements);
  for (const auto& [x, points] : lines) {
    const auto is_taken = [&, first = x](std::int64_t y) { return measurements.has(table.name, {first, y}); };
    const auto gap = gap_of_line(nodes(points), 1, false, is_taken);
    if (gap && gap->error > (worst ? worst->error : 0)) worst = Gap{{x, gap->x}, gap->error};
  }
  return worst;
}

}  // namespace kvlab
