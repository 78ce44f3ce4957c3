#include "app/runs/figure_settings.h"

namespace kvlab {

namespace {

bool is_list(const Params& p, const std::string& key) { return p.inline_text(key, "").starts_with('['); }
bool is_mapping(const Params& p, const std::string& key) { return p.inline_text(key, "").starts_with('{'); }

void read_one_or_more(Params& p, const std::string& key, const std::string& meaning) {
  if (is_list(p, key))
    p.words(key, meaning);
  else
    p.text(key, "", meaning);
}

void read_pair(Params& p, const std::string& key, double low, double high, const std::string& meaning) {
  const std::vector<double> pair = p.numbers(key, low, high, meaning);
  if (p.has(key) && (pair.size() != 2 || (key != "size" && pair[0] >= pair[1])))
    p.fail_at(key, "'" + key + "': expected two numbers, " + (key == "size" ? "[width, height] in inches" : "the smaller one first"));
}

void read_data(Params& f) {
  read_one_or_more(f, "metric", "columns of summary.csv, or ttft, tpot, e2e with 'statistic'");
  f.text("statistic", "", "mean, p50, p90, p95, p99 or max over requests, or cdf: their distribution");
  f.text("x", "", "axis or column that runs from left to right");
  read_one_or_more(f, "series", "axes whose values have lines of their own; default: all that vary");
  f.text("panel", "", "axis whose values have panels of their own");
  f.optional<int>("max_lines", 12, 1, 100, "lines of one figure; the others are named in its note");
  if (is_mapping(f, "only")) {
    Params only = f.child("only", "only");
    for (const std::string& axis : only.keys()) read_one_or_more(only, axis, "values of this axis that are drawn");
  } else {
    read_one_or_more(f, "only", "legend entries that are drawn, in this order; or {AXIS: [values]}");
  }
}

// Settings of the figures of two folders.
void read_join(Params& f) {
  f.text("join", "", "results folder of graded answers or of a replay that the figure joins with this experiment");
  f.choice("join_by", {"budget", "share"}, 0, "budgets are joined where they are equal, or keep the same share of the prompt");
}

void read_look(Params& f) {
  constexpr double kMost = 1e18;
  Params names = f.optional_child("names", "names");
  for (const std::string& name : names.keys()) names.text(name, "the name that the figure prints");
  read_pair(f, "size", 0.5, 40, "width and height in inches");
  for (const char* const key : {"title", "x_label", "y_label"}) f.text(key, "", "text in place of the usual one");
  for (const char* const key : {"x_range", "y_range"}) read_pair(f, key, -kMost, kMost, "both ends of the axis");
  for (const char* const key : {"x_scale", "y_scale"}) f.choice(key, {"", "linear", "log"}, 0, "scale of the axis");
  f.flag("slo_lines", true, "lines at the limits of the SLO");
  f.flag("legend", true, "the legend");
  f.flag("draw", true, "false: the figure is left out");
  read_one_or_more(f, "format", "pdf, png, pgf: files that are written");
}

}  // namespace

void check_figure_settings(Params experiment) {
  Params figures = experiment.child(kFigures, kFigures);
  for (const std::string& name : figures.keys()) {
    Params figure = figures.child(name, "the figure '" + name + "'");
    read_data(figure);
    read_join(figure);
    read_look(figure);
    figure.reject_unread();
  }
}

}  // namespace kvlab
