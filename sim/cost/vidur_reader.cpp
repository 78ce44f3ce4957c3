#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

struct VidurOp {
  const char* name;
  std::optional<OpId> covers;  // none: added
  int per_layer;
};
// vidur/entities/execution_time.py: `add` once per layer, `emb` once per step.
constexpr VidurOp kOps[] = {
    {"emb", OpId::kEmbedding, 0},
    {"input_layernorm", OpId::kLayernorm, 1},
    {"post_attention_layernorm", OpId::kLayernorm, 1},
    {"attn_pre_proj", OpId::kQkvProj, 1},
    {"attn_rope", OpId::kRotaryEmb, 1},
    {"attn_post_proj", OpId::kOProj, 1},
    {"mlp_up_proj", OpId::kGateUpProj, 1},
    {"mlp_act", OpId::kActFn, 1},
    {"mlp_down_proj", OpId::kDownProj, 1},
    {"add", std::nullopt, 1},
};

std::string median_of(const std::string& op) { return "time_stats." + op + ".median"; }

// Medians of each point's measurements, in any order.
class Points {
 public:
  void add(SampleGrid::Point at, Picoseconds time) { times_[at].push_back(time); }
  [[nodiscard]] SampleGrid grid(std::size_t axes, const std::string& name, std::vector<std::string>& notes) {
    std::vector<SampleGrid::Sample> samples;
    std::size_t repeats = 0;
    for (auto& [at, times] : times_) {
      std::sort(times.begin(), times.end());
      repeats += times.size() - 1;
      samples.push_back({at, times[(times.size() - 1) / 2], 0});
    }
    if (repeats > 0) notes.push_back(name + ": " + std::to_string(repeats) + " repeated measurements were merged by their median");
    return {axes, std::move(samples)};
  }
  [[nodiscard]] bool empty() const { return times_.empty(); }

 private:
  std::map<SampleGrid::Point, std::vector<Picoseconds>> times_;
};

// At `tp`; throws InputError with the degrees if none.
std::vector<std::size_t> rows_of_tp(const MeasuredTable& csv, const std::string& column, int tp) {
  const std::size_t at = csv.column(column);
  std::vector<std::size_t> rows;
  std::map<std::int64_t, int> present;
  for (std::size_t row = 0; row < csv.num_rows(); ++row) {
    const std::int64_t degree = csv.count(row, at);
    ++present[degree];
    if (degree == tp) rows.push_back(row);
  }
  if (!rows.empty()) return rows;
  std::vector<std::string> degrees;
  for (const auto& [degree, count] : present) degrees.push_back(std::to_string(degree));
  throw InputError(csv.file() + ": no rows for tp " + std::to_string(tp) + "; there is tp " + join(degrees, ", "));
}

bool is_blank(const std::string& cell) { return cell.empty() || cell == "nan" || cell == "NaN"; }

void read_mlp(const std::string& file, Profile& p) {
  const MeasuredTable csv(file);
  const std::vector<std::size_t> rows = rows_of_tp(csv, "num_tensor_parallel_workers", p.tp);
  const std::size_t tokens = csv.column("num_tokens");
  for (const VidurOp& op : kOps) {
    if (!csv.has(median_of(op.name))) continue;
    const std::size_t time = csv.column(median_of(op.name));
    Points points;
    for (const std::size_t row : rows)
      if (!is_blank(csv.text(row, time))) points.add({csv.count(row, tokens)}, csv.time(row, time, TimeUnit::kMs));
    if (!points.empty())
      p.ops.push_back({op.name, std::string(op.covers ? name_of(*op.covers) : op.name), OpFamily::kTokens, op.per_layer,
                       points.grid(1, op.name, p.notes)});
  }
  for (const char* key : {"n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size"})
    if (csv.has(key)) p.options[key] = csv.text(rows.front(), csv.column(key));
}

// Vidur excludes a row's own tokens, the table includes them. Batches of several prompts are left out.
void read_attention(const std::string& file, Profile& p) {
  const MeasuredTable csv(file);
  const std::size_t prefill = csv.column(median_of("attn_prefill")), decode = csv.column(median_of("attn_decode"));
  const std::size_t batch = csv.column("batch_size"), chunk = csv.column("prefill_chunk_size"), kv = csv.column("kv_cache_size");
  const std::size_t is_prefill = csv.column("is_prefill");
  const bool has_save = csv.has(median_of("attn_kv_cache_save"));
  Points attention, save;
  std::size_t skipped = 0;
  for (const std::size_t row : rows_of_tp(csv, "num_tensor_parallel_workers", p.tp)) {
    const std::string& kind = csv.text(row, is_prefill);
    if (kind != "True" && kind != "False") throw InputError(csv.place(row) + ": 'is_prefill' = '" + kind + "': expected True or False");
    const bool is_prompt = kind == "True";
    const std::int64_t rows = csv.count(row, batch), cached = csv.count(row, kv), new_tokens = csv.count(row, chunk);
    if (is_prompt && rows != 1) {
      ++skipped;
      continue;
    }
    if (is_prompt)
      attention.add({new_tokens, cached, 0, 0}, csv.time(row, prefill, TimeUnit::kMs));
    else
      attention.add({0, 0, rows, cached + 1}, csv.time(row, decode, TimeUnit::kMs));
    if (!has_save) continue;
    const std::size_t column = csv.column(median_of("attn_kv_cache_save"));
    if (!is_blank(csv.text(row, column))) save.add({is_prompt ? new_tokens : rows}, csv.time(row, column, TimeUnit::kMs));
  }
  if (skipped > 0) p.notes.push_back("attention.csv: " + std::to_string(skipped) + " rows of several prompts in one call were left out");
  p.attention = attention.grid(4, "attention", p.notes);
  if (!save.empty())
    p.ops.push_back(
        {"attn_kv_cache_save", std::string(name_of(OpId::kAppendKv)), OpFamily::kTokens, 1, save.grid(1, "attn_kv_cache_save", p.notes)});
}

void read_all_reduce(const std::string& file, Profile& p) {
  const MeasuredTable csv(file);
  const std::size_t time = csv.column(median_of("all_reduce")), size = csv.column("size");
  Points points;
  for (const std::size_t row : rows_of_tp(csv, "num_workers", p.tp)) points.add({csv.count(row, size)}, csv.time(row, time, TimeUnit::kMs));
  SampleGrid grid = points.grid(1, "all_reduce", p.notes);
  std::vector<std::string> places(grid.samples().size(), file);
  p.collectives.push_back({Collective::kAllReduce, p.tp, "", "", std::move(grid), std::move(places)});
}

// In milliseconds.
Profile read_vidur(const std::string& folder, int tp) {
  Profile p = empty_profile(folder, "vidur", tp);
  p.repeats_scatter = true;
  p.source = "Vidur profiler";
  read_mlp(folder + "/mlp.csv", p);
  read_attention(folder + "/attention.csv", p);
  std::error_code error;
  if (tp > 1 && std::filesystem::exists(folder + "/all_reduce.csv", error)) read_all_reduce(folder + "/all_reduce.csv", p);
  return p;
}

class VidurFormat final : public ProfileFormat {
 public:
  explicit VidurFormat(Params& /*p*/) {}
  [[nodiscard]] bool fills_gaps() const override { return true; }  // no output head
  [[nodiscard]] std::pair<std::string, std::string> mark() const override { return {"mlp.csv", "Vidur's"}; }
  [[nodiscard]] Profile read(const std::string& folder, int tp) const override { return read_vidur(folder, tp); }
};

KVLAB_REGISTER(ProfileFormat, VidurFormat, "vidur", "tables of Vidur's profiler", "Vidur: Agrawal et al. 2024, arXiv:2405.05465");

}  // namespace

}  // namespace kvlab
