#include "base/config/params.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/config/axes.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

Params params(const std::string& yaml, const std::vector<std::string>& overrides = {}, const Choices& choices = {}) {
  return {parse_config(yaml, "run.yaml", overrides), std::make_shared<Choices>(choices), "test"};
}

std::string integer_error(const std::string& yaml) {
  return error_of([&] { params(yaml).required<int>("n", 0, 7, ""); });
}

std::string real_error(const std::string& yaml) {
  return error_of([&] { params(yaml).required<double>("x", 0, 1, ""); });
}

TEST(Params, ReadsEachType) {
  Params p = params("n: -3\nu: 18\nx: 2.5e-3\non: true\noff: false\nword: hello\npick: b\nd_ms: 1.5\nd_s: 2\nl: [1, 2.5]\n");
  EXPECT_EQ(p.required<int>("n", -3, -3, ""), -3);
  EXPECT_EQ(p.required<std::uint64_t>("u", 0, 20, ""), 18U);
  EXPECT_EQ(p.required<double>("x", 0, 1, ""), 2.5e-3);
  EXPECT_TRUE(p.flag("on", false, ""));
  EXPECT_FALSE(p.flag("off", true, ""));
  EXPECT_EQ(p.text("word", ""), "hello");
  EXPECT_EQ(p.choice("pick", {"a", "b"}, 0, ""), 1U);
  EXPECT_EQ(p.milliseconds("d_ms", 0, 0, 10, ""), Span(1'500'000));
  EXPECT_EQ(p.seconds("d_s", 0, 0, 10, ""), Span(2'000'000'000));
  EXPECT_EQ(p.numbers("l", 0, 3, ""), (std::vector<double>{1, 2.5}));
  EXPECT_NO_THROW(p.reject_unread());
  EXPECT_TRUE(p.defaults().empty());
}

TEST(Params, AbsentKeysAnswerTheirDefaultAndAreListed) {
  Params p = params("scheduler: {sarathi: {}}\nmemory: {}\nrouter: random\n");
  EXPECT_EQ(p.optional("n", 5, 0, 9, ""), 5);
  EXPECT_EQ(p.optional("x", 0.25, 0.0, 1.0, ""), 0.25);
  EXPECT_TRUE(p.flag("on", true, ""));
  EXPECT_EQ(p.text("word", "hello", ""), "hello");
  EXPECT_EQ(p.choice("pick", {"a", "b"}, 1, ""), 1U);
  EXPECT_TRUE(p.numbers("l", 0, 1, "").empty());
  auto [name, scheduler] = p.named("scheduler", "", "");
  scheduler.optional("budget_tokens", 512, 1, 1000, "");
  p.child("memory", "memory").optional("util_frac", 0.9, 0.0, 1.0, "");
  p.optional_child("stop", "stop").optional("requests", 7, 0, 9, "");
  p.named("router", "", "").second.flag("seeded", false, "");
  const std::map<std::string, std::string> expected{{"n", "5"},
                                                    {"x", "0.25"},
                                                    {"on", "true"},
                                                    {"word", "hello"},
                                                    {"pick", "b"},
                                                    {"scheduler.sarathi.budget_tokens", "512"},
                                                    {"memory.util_frac", "0.9"},
                                                    {"stop.requests", "7"},
                                                    {"router.random.seeded", "false"}};
  EXPECT_EQ(p.defaults(), expected);
}

TEST(Params, WhatAMappingLacksIsReadFromAnother) {
  Params p = params(
      "scheduler: {sarathi: {budget_tokens: 7}}\nmemory: {num_blocks: 5}\nn: x\npools:\n  one: {schedular: 3, memory: {num_blocks: 9}}\n");
  Params one = p.child("pools", "pools").child("one", "pool 'one'");
  one.fall_back_on(p, {"scheduler", "memory", "n"});
  one.fall_back_on(params("n: 1\nm: 2\n"), {"n", "m"});
  auto [name, sarathi] = one.named("scheduler", "", "");
  EXPECT_EQ(name, "sarathi");
  EXPECT_EQ(sarathi.required<int>("budget_tokens", 1, 7, ""), 7);
  EXPECT_EQ(one.child("memory", "memory").required<int>("num_blocks", 1, 9, ""), 9);
  EXPECT_EQ(error_of([&] { one.optional<int>("n", 1, 1, 3, ""); }), "run.yaml:3:4: 'n': not a whole number: 'x'");  // the first that has it
  EXPECT_EQ(one.optional<int>("m", 1, 1, 3, ""), 2);
  EXPECT_EQ(one.optional<int>("k", 1, 1, 3, ""), 1);
  EXPECT_TRUE(one.has("n") && !one.has_own("n") && one.has_own("memory") && !one.has("pools"));
  EXPECT_EQ(error_of([&] { one.fail_at("scheduler", "no"); }), "run.yaml:1:12: no");
  EXPECT_EQ(error_of([&] { one.reject_unread(); }), "run.yaml:5:9: unknown key 'schedular' in pool 'one'; did you mean 'scheduler'?");
  EXPECT_EQ(error_of([&] { p.reject_unread(); }), "run.yaml:2:1: unknown key 'memory' in test; it belongs in 'pools.one'");
}

TEST(Params, IntegersAreStrictAndRangesIncludeTheirEnds) {
  EXPECT_EQ(integer_error("n: 0\n"), "no error");
  EXPECT_EQ(integer_error("n: 7\n"), "no error");
  EXPECT_EQ(integer_error("a: 1\nn: 8\n"), "run.yaml:2:4: 'n' = 8 is outside [0, 7]");
  EXPECT_EQ(integer_error("n: -1\n"), "run.yaml:1:4: 'n' = -1 is outside [0, 7]");
  EXPECT_EQ(integer_error("n:   010\n"), "run.yaml:1:6: 'n': not a whole number: '010'");
  EXPECT_EQ(integer_error("n: 0x3\n"), "run.yaml:1:4: 'n': not a whole number: '0x3'");
  EXPECT_EQ(integer_error("n: 1.0\n"), "run.yaml:1:4: 'n': not a whole number: '1.0'");
  EXPECT_EQ(integer_error("n: 1e0\n"), "run.yaml:1:4: 'n': not a whole number: '1e0'");
  EXPECT_EQ(integer_error("n: 99999999999999999999\n"), "run.yaml:1:4: 'n': not a whole number: '99999999999999999999'");
  EXPECT_EQ(integer_error("n: {a: 1}\n"), "run.yaml:1:4: 'n': expected one value, found a mapping");
  EXPECT_EQ(integer_error("n: [1]\n"), "run.yaml:1:4: 'n': expected one value, found a list");
  EXPECT_NE(integer_error("n:\n").find("'n': expected one value, found nothing"), std::string::npos);
}

TEST(Params, TimesBelowANanosecondAreRefused) {
  const auto error = [](const std::string& text, auto read) {
    return error_of([&] {
      Params p = Params::from_text(text);
      read(p);
    });
  };
  const auto ms = [](Params& p) { return p.milliseconds("a", 1, 0, 10, ""); };
  const auto s = [](Params& p) { return p.seconds("a", 1, 0, 10, ""); };
  EXPECT_NE(error("a: 1e-9", ms).find("'a' = 1e-09 is below a nanosecond: write 0, or at least 1e-6"), std::string::npos);
  EXPECT_NE(error("a: 1e-11", s).find("at least 1e-9"), std::string::npos);
  for (const char* const good : {"a: 0", "a: 1e-6", "{}"}) EXPECT_EQ(error(good, ms), "no error") << good;
}

TEST(Params, RealsAreFiniteAndInRange) {
  EXPECT_EQ(real_error("x: 0\n"), "no error");
  EXPECT_EQ(real_error("x: 1.0\n"), "no error");
  EXPECT_EQ(real_error("x: 1.0000001\n"), "run.yaml:1:4: 'x' = 1.0000001 is outside [0, 1]");
  EXPECT_EQ(real_error("x: -1e-9\n"), "run.yaml:1:4: 'x' = -1e-9 is outside [0, 1]");
  for (const char* word : {".nan", "nan", "NaN", ".inf", "inf", "-inf", "1e400", "0x1p-2", "1/2", "half"})
    EXPECT_EQ(real_error("x: " + std::string(word) + "\n"), "run.yaml:1:4: 'x': not a number: '" + std::string(word) + "'");
}

TEST(Params, FlagsChoicesAndListsRefuseOtherValues) {
  EXPECT_EQ(error_of([] { params("on: yes\n").flag("on", false, ""); }), "run.yaml:1:5: 'on': expected true or false, found 'yes'");
  const std::vector<std::string> actions{"swap", "recompute"};
  EXPECT_EQ(error_of([&] { params("p: swop\n").choice("p", actions, 0, ""); }),
            "run.yaml:1:4: 'p': unknown value 'swop'; did you mean 'swap'?");
  EXPECT_EQ(error_of([&] { params("p: 7\n").choice("p", actions, 0, ""); }),
            "run.yaml:1:4: 'p': unknown value '7'; known: swap, recompute");
  EXPECT_EQ(error_of([] { params("l: 3\n").numbers("l", 0, 1, ""); }), "run.yaml:1:4: 'l': expected a list, [a, b, ...]");
  EXPECT_EQ(error_of([] { params("l: [1, 2]\n").numbers("l", 0, 1, ""); }), "run.yaml:1:8: 'l' = 2 is outside [0, 1]");
}

TEST(Params, ChoicesOfNamedValues) {
  enum class Fruit { kApple, kPear, kPlum };
  const auto read = [](const std::string& yaml) {
    return params(yaml).choice("p", {{"plum", Fruit::kPlum}, {"pear", Fruit::kPear}}, Fruit::kPear, "which");
  };
  EXPECT_EQ(std::tuple(read("p: plum\n"), read("p: pear\n"), read("q: plum\n")), std::tuple(Fruit::kPlum, Fruit::kPear, Fruit::kPear));
  EXPECT_EQ(error_of([&] { read("p: plun\n"); }), "run.yaml:1:4: 'p': unknown value 'plun'; did you mean 'plum'?");
  EXPECT_TRUE(params("p: padded\n").choice("p", {{"sum", false}, {"padded", true}}, false, ""));
  EXPECT_FALSE(params("q: padded\n").choice("p", {{"sum", false}, {"padded", true}}, false, ""));
  std::vector<ParamDoc> docs;
  Params::describing("thing", docs).choice("p", {{"plum", Fruit::kPlum}, {"pear", Fruit::kPear}}, Fruit::kPear, "which");
  EXPECT_EQ(docs.at(0).type + "|" + docs.at(0).fallback + "|" + docs.at(0).range + "|" + docs.at(0).meaning,
            "choice|pear|plum, pear|which");
}

TEST(Params, UnknownKeysAreRefusedWithTheirPlace) {
  Params p = params("memory:\n  block_tokns: 3\n  util: 1\n");
  Params memory = p.child("memory", "memory");
  EXPECT_NO_THROW(p.reject_unread());
  memory.optional("block_tokens", 16, 1, 99, "");
  memory.optional("util", 1, 0, 1, "");
  EXPECT_EQ(error_of([&] { memory.reject_unread(); }), "run.yaml:2:3: unknown key 'block_tokns' in memory; did you mean 'block_tokens'?");
  Params far = params("zzzzzz: 1\n");
  for (const char* key : {"seed", "name"}) far.optional(key, 0, 0, 9, "");
  EXPECT_EQ(error_of([&] { far.reject_unread(); }), "run.yaml:1:1: unknown key 'zzzzzz' in test; known: name, seed");
}

TEST(Params, MissingKeysNameAMisspelledOne) {
  EXPECT_EQ(error_of([] { params("modle: x\n").text("model", ""); }), "run.yaml:1:1: test needs 'model'; found 'modle': misspelled?");
  EXPECT_EQ(error_of([] { params("a: {b: 1}\n").child("a", "part").required<int>("seed", 0, 1, ""); }), "run.yaml:1:4: part needs 'seed'");
  Params was_read = params("modle: x\n");  // a key that was read is what it says
  was_read.text("modle", "");
  EXPECT_EQ(error_of([&] { was_read.text("model", ""); }), "run.yaml:1:1: test needs 'model'");
  EXPECT_EQ(error_of([] { params("first: 1\n").child("second", "part"); }), "run.yaml:1:1: test needs 'second'");
}

TEST(Params, FilesThatAreNoMappingAreRefused) {
  EXPECT_EQ(error_of([] { params("a: 1\nb: 2\na: 3\n"); }), "run.yaml:3:1: key 'a' appears twice");
  EXPECT_EQ(error_of([] { params("o:\n  - {a: 1, a: 2}\n"); }), "run.yaml:2:12: key 'a' appears twice");
  EXPECT_EQ(error_of([] { params(""); }), "run.yaml: empty file");
  EXPECT_EQ(error_of([] { params("[1]\n"); }), "run.yaml:1:1: expected 'key: value' lines at the top level");
  EXPECT_EQ(error_of([] { params("a: 1\n---\nb: 1\n"); }), "run.yaml: holds more than one YAML document; one is expected");
  EXPECT_TRUE(error_of([] { params("a: [1\n"); }).starts_with("run.yaml:"));
  EXPECT_EQ(error_of([] { params(std::string("a: 1\0", 5)); }), "run.yaml: not a text file (it holds a zero byte)");
  EXPECT_EQ(error_of([] { params("[a, b]: 1\n"); }), "run.yaml:1:1: a key must be a plain word");
}

TEST(Params, PoliciesAreANameOrANameWithParameters) {
  Params p = params("a: orca\nb: {sarathi: {budget_tokens: 64}}\nc: {static: }\nd: {x: 1, y: 2}\ne: {x: 3}\nf: [orca]\n");
  EXPECT_EQ(p.named("a", "", "").first, "orca");
  auto [name, below] = p.named("b", "", "");
  EXPECT_EQ(name, "sarathi");
  EXPECT_EQ(below.path(), "b.sarathi");
  EXPECT_EQ(below.owner(), "b 'sarathi'");
  EXPECT_EQ(below.required<int>("budget_tokens", 1, 99, ""), 64);
  EXPECT_NO_THROW(below.reject_unread());
  EXPECT_EQ(p.named("c", "", "").first, "static");
  EXPECT_TRUE(p.named("c", "", "").second.keys().empty());
  EXPECT_EQ(p.named("absent", "lru", "").first, "lru");
  EXPECT_EQ(error_of([&] { p.named("d", "", ""); }), "run.yaml:4:4: 'd': expected a name, or one {name: {parameters}}");
  Params bare = p.named("e", "", "").second;
  EXPECT_FALSE(bare.has("n"));
  EXPECT_EQ(bare.inline_text("n", "none"), "none");
  const std::string expected = "run.yaml:5:8: 'x': expected its parameters as {key: value}, found 3";
  EXPECT_EQ(error_of([&] { bare.required<int>("n", 1, 9, ""); }), expected + "; write 'x: {n: 3}'");
  EXPECT_EQ(error_of([&] { bare.optional<int>("n", 7, 1, 9, ""); }), expected + "; for example 'x: {n: 7}'");
  EXPECT_EQ(error_of([&] { bare.reject_unread(); }), expected) << "a policy without parameters";
  EXPECT_EQ(error_of([&] { p.named("missing", "", ""); }), "run.yaml:1:1: test needs 'missing'");
  EXPECT_THROW(p.named("f", "", ""), InputError) << "a list that nobody expanded";
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) (void)error_of([&] { p.named(key, "", ""); });
  EXPECT_NO_THROW(p.reject_unread());
}

TEST(Params, ShortFormsAreWrittenOutInMessages) {
  Params p = params(
      "a: {name: orca}\nb: {name: sarathi, budget_tokens: 64}\nc: {sarathi, budget_tokens: 64}\nd: {orca: {}, sarathi: {}}\n"
      "parallel: 4\nstop: soon\nsearch: rate\ntrace: a/b.csv\nsamples: {one: x.safetensors}\n");
  const auto named = [&](const char* key) { return error_of([&] { p.named(key, "", ""); }); };
  const std::string expected = "expected a name, or one {name: {parameters}}; ";
  EXPECT_EQ(named("a"), "run.yaml:1:4: 'a': " + expected + "write 'a: orca'");
  EXPECT_EQ(named("b"), "run.yaml:2:4: 'b': " + expected + "write 'b: {sarathi: {budget_tokens: 64}}'");
  EXPECT_EQ(named("c"), "run.yaml:3:4: 'c': " + expected + "write 'c: {sarathi: {budget_tokens: 64}}'");
  EXPECT_EQ(named("d"), "run.yaml:4:4: 'd': " + expected + "to compare several, write a list: 'd: [{orca: {...}}, {sarathi: {...}}]'");
  const auto child = [](Params& of, const char* key) { return error_of([&] { of.child(key, ""); }); };
  EXPECT_EQ(child(p, "parallel"), "run.yaml:5:11: 'parallel': expected 'key: value' lines, found 4; write 'parallel: {tp: 4}'");
  EXPECT_EQ(child(p, "stop"), "run.yaml:6:7: 'stop': expected 'key: value' lines, found soon; write 'stop: {after_s: N}'");
  EXPECT_EQ(child(p, "search"), "run.yaml:7:9: 'search': expected 'key: value' lines, found rate; write 'search: {rate: [LOW, HIGH]}'");
  EXPECT_EQ(child(p, "trace"), "run.yaml:8:8: 'trace': expected 'key: value' lines, found a/b.csv; write 'trace: {file: a/b.csv}'");
  Params samples = p.child("samples", "");
  EXPECT_EQ(child(samples, "one"),
            "run.yaml:9:16: 'one': expected 'key: value' lines, found x.safetensors; write 'one: {file: x.safetensors}'");
}

TEST(Params, Children) {
  Params p = params("memory: {util_frac: 0.5}\nnothing:\nword: x\n");
  EXPECT_EQ(p.child("memory", "memory").required<double>("util_frac", 0, 1, ""), 0.5);
  EXPECT_EQ(p.child("memory", "memory").path(), "memory");
  for (const char* key : {"nothing", "absent"}) EXPECT_TRUE(p.optional_child(key, "n").keys().empty());
  EXPECT_TRUE(p.has("nothing") && !p.has("absent"));
  EXPECT_EQ(error_of([&] { p.child("word", "w"); }), "run.yaml:3:7: 'word': expected 'key: value' lines, found x");
  EXPECT_EQ(error_of([&] { p.fail("too bad"); }), "run.yaml:1:1: too bad");
  EXPECT_EQ(error_of([&] { p.fail_at("word", "too bad"); }), "run.yaml:3:7: too bad");
}

TEST(Params, OverridesReplaceAndAddValues) {
  Params p = params("seed: 1\nmemory: {blocks: 5}\n", {"seed=2", "memory.blocks=6", "memory.util_frac=0.5", "stop.requests=9"});
  EXPECT_EQ(p.required<int>("seed", 0, 9, ""), 2);
  Params memory = p.child("memory", "memory");
  EXPECT_EQ(memory.required<int>("blocks", 0, 9, ""), 6);
  EXPECT_EQ(memory.required<double>("util_frac", 0, 1, ""), 0.5);
  EXPECT_EQ(p.child("stop", "stop").required<int>("requests", 0, 9, ""), 9);
  EXPECT_EQ(params("seed: 1\n", {"seed=2", "seed=3"}).required<int>("seed", 0, 9, ""), 3) << "the last one holds";
}

TEST(Params, AnOverrideTurnsANameIntoAMapping) {
  Params p = params("scheduler: sarathi\n", {"scheduler.sarathi.budget_tokens=64"});
  auto [name, below] = p.named("scheduler", "", "");
  EXPECT_EQ(name, "sarathi");
  EXPECT_EQ(below.required<int>("budget_tokens", 1, 99, ""), 64);
  EXPECT_EQ(error_of([&p = below] { p.required<int>("budget_tokens", 1, 32, ""); }),
            "--set scheduler.sarathi.budget_tokens=64: 'budget_tokens' = 64 is outside [1, 32]");
}

TEST(Params, OverridesMayBeListsAndAreNamedInMessages) {
  const auto file = parse_config("seed: 1\n", "run.yaml", {"seed=[4, 5]"});
  EXPECT_EQ(expand_axes(*file).points.size(), 2U);
  EXPECT_EQ(error_of([] { params("a: 1\n", {"b=1"}).reject_unread(); }), "run.yaml:1:1: unknown key 'a' in test");
  Params p = params("a: 1\n", {"b=1"});
  p.required<int>("a", 0, 1, "");
  EXPECT_EQ(error_of([&] { p.reject_unread(); }), "--set b=1: unknown key 'b' in test; known: a");
  for (const std::string bad : {"a", "=3", "a..b=3"})
    EXPECT_EQ(error_of([&] { params("a: 1\n", {bad}); }), "--set " + bad + ": expected --set key.key=value");
  EXPECT_EQ(error_of([] { params("a: [{b: 1}]\n", {"a.b=3"}); }), "--set a.b=3: 'a' is a list in run.yaml; set the whole list");
  EXPECT_TRUE(error_of([] { params("a: 1\n", {"a=[1"}); }).starts_with("--set a=[1: "));
}

TEST(Params, AliasesAreReadAndMustNotRepeatWithoutEnd) {
  EXPECT_EQ(params("a: &x {n: 3}\nb: *x\n").child("b", "b").required<int>("n", 0, 7, ""), 3);
  std::string bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + below;
    for (int k = 1; k < 10; ++k) bomb += ", " + below;
    bomb += "]\n";
  }
  EXPECT_EQ(error_of([&] { params(bomb); }),
            "run.yaml:1:10: aliases (*name) repeat too much: more than 10,000 values beyond what is written");
}

TEST(Params, MergeKeysAddWhatTheMappingLacks) {
  const std::string text = "x: &x {n: 3, m: {k: 1}}\ny: &y {n: 4, o: 5}\na: {<<: *x, n: 7}\nb: {<<: [*x, *y]}\nc: [{<<: *y}]\n";
  const auto value = [](Params p, const char* key) { return p.required<int>(key, 0, 99, ""); };
  Params p = params(text, {"a.m.k=9"});
  EXPECT_EQ(value(p.child("a", "a"), "n"), 7);
  EXPECT_EQ(value(p.child("a", "a").child("m", "m"), "k"), 9);
  EXPECT_EQ(value(p.child("x", "x").child("m", "m"), "k"), 1) << "an override leaves what is merged as it is";
  EXPECT_EQ(value(p.child("b", "b"), "n"), 3) << "of two that are merged the first counts";
  EXPECT_EQ(value(p.child("b", "b"), "o"), 5);
  EXPECT_FALSE(p.child("b", "b").has("<<"));
  const char* const refused = "'<<' takes a mapping or a list of mappings, as in '<<: *name'";
  EXPECT_EQ(error_of([] { params("a: 1\n<<: 3\n"); }), std::string("run.yaml:2:5: ") + refused);
  EXPECT_EQ(error_of([] { params("a: &a [1]\nb: {<<: [*a]}\n"); }), std::string("run.yaml:1:4: ") + refused);
}

TEST(Params, AnOverrideLeavesWhatAnAliasSharesAsItIs) {
  const std::string text = "a: &x {n: 3, m: &y {k: 1}}\nb: *x\nc: *y\nd: &z word\ne: *z\n";
  const auto n_of = [](Params& p, const std::string& key) { return p.child(key, key).required<int>("n", 0, 99, ""); };
  const auto k_of = [](Params p, const std::string& key) { return p.child(key, key).required<int>("k", 0, 99, ""); };
  Params p = params(text, {"a.n=5", "a.m.k=7", "b.new.deep=1", "d=other"});
  EXPECT_EQ(std::tuple(n_of(p, "a"), n_of(p, "b")), std::tuple(5, 3));
  EXPECT_EQ(std::tuple(k_of(p.child("a", "a"), "m"), k_of(p.child("b", "b"), "m"), k_of(p, "c")), std::tuple(7, 1, 1));
  EXPECT_FALSE(p.child("a", "a").has("new"));
  EXPECT_EQ(std::tuple(p.text("d", ""), p.text("e", "")), std::tuple("other", "word"));
}

TEST(Params, WhatStandsBesideAnOverrideKeepsItsPlaceAndOrder) {
  Params p = params("a:\n  x: 1\n  y: {z: 1}\nb: 2\n", {"a.y.new=1", "a.x=4"});
  EXPECT_EQ(p.keys(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(p.child("a", "a").keys(), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(error_of([&] { p.child("a", "a").child("y", "y").fail("too bad"); }), "run.yaml:3:6: too bad");
  EXPECT_EQ(error_of([&] { p.child("a", "a").fail("too bad"); }), "run.yaml:2:3: too bad");
}

TEST(Params, DescribingRecordsEveryReadAndNeedsNothing) {
  std::vector<ParamDoc> docs;
  Params p = Params::describing("thing", docs);
  EXPECT_EQ(p.required<int>("n", 3, 9, "how many"), 3);
  p.optional("x", 0.5, 0.0, 1.0, "share");
  p.optional<std::int32_t>("big", 4, 1, std::numeric_limits<std::int32_t>::max(), "no upper end");
  p.flag("on", true, "switch");
  p.text("word", "which");
  p.choice("pick", {"a", "b"}, 1, "one of");
  p.child("memory", "memory").optional("blocks", 1, 0, 2, "below");
  EXPECT_EQ(p.named("policy", "lru", "chosen").first, "lru");
  ASSERT_EQ(docs.size(), 8U);
  EXPECT_EQ(docs[0].key + "|" + docs[0].type + "|" + docs[0].fallback + "|" + docs[0].range + "|" + docs[0].meaning,
            "n|integer||[3, 9]|how many");
  EXPECT_EQ(docs[1].type + "|" + docs[1].fallback + "|" + docs[1].range, "real|0.5|[0, 1]");
  EXPECT_EQ(docs[2].range, "[1, ...]");
  EXPECT_EQ(docs[3].type + "|" + docs[3].fallback, "flag|true");
  EXPECT_EQ(docs[5].fallback + "|" + docs[5].range, "b|a, b");
  EXPECT_EQ(docs[6].key, "blocks");
  EXPECT_EQ(docs[7].fallback, "lru");
  EXPECT_TRUE(p.defaults().empty());
}

TEST(Params, LooksIntoAMappingWithoutReadingIt) {
  Params p = params("output: {kept: true}\nplain: kept\n");
  EXPECT_TRUE(p.has_within("output", "kept"));
  for (const auto& [key, below] : {std::pair{"output", "other"}, {"plain", "kept"}, {"absent", "kept"}})
    EXPECT_FALSE(p.has_within(key, below));
  EXPECT_NE(error_of([&] { p.reject_unread(); }), "no error");
}

}  // namespace
}  // namespace kvlab
