// Names of a profile's tables.
#include "sim/cost/profile.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

// A table's name is its file's; what it counts as is `covers`. Profiles of earlier calibrations have rotary_emb and lm_head where those
// of a GPU now have rope_qk and linear_head.
TEST(KvlabProfile, TablesOfEitherNamePredictTheSame) {
  const TempFolder bundle, older, newer;
  write_tiny_bundle(bundle);
  const Profile profile = *setup_of(tiny_experiment(bundle)).profile;
  write_kvlab_profile(profile, older.path());
  Profile renamed = profile;
  for (ProfileOp& op : renamed.ops)
    for (const auto& [from, to] : {std::pair{"rotary_emb", "rope_qk"}, {"lm_head", "linear_head"}})
      if (op.name == from) op.name = to;
  write_kvlab_profile(renamed, newer.path());
  EXPECT_NE(profile_hash(read_kvlab_profile(newer.path(), 1)), profile_hash(profile)) << "it was renamed";
  const auto model_of = [](const TempFolder& folder) { return make_cost_model(setup_of(tiny_experiment(folder, "kvlab"))); };
  const auto a = model_of(older), b = model_of(newer);
  for (const std::int32_t rows : {1, 3, 16}) {
    const StepShape shape = decode_shape(rows, 40 * rows, 40, 40);
    EXPECT_GT(a->step(shape).total, Picoseconds{});
    EXPECT_EQ(a->step(shape).total, b->step(shape).total);
    EXPECT_EQ(a->prefill_seconds(20 * rows, 0), b->prefill_seconds(20 * rows, 0));
  }
}

}  // namespace
}  // namespace kvlab
