#include "engine/tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/probe.h"
#include "tests/error_of.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

using nlohmann::json;

using Ids = std::vector<std::int32_t>;

// Letters a to d, two merges, an unknown token, bytes of 'é', and two added tokens.
json small_tokenizer() {
  return json::parse(R"({
    "added_tokens": [{"id": 9, "content": "<s>", "special": true}, {"id": 10, "content": "<mark>", "special": false}],
    "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "Fuse"},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]}}},
    "model": {"type": "BPE", "unk_token": "?", "byte_fallback": true,
              "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "bc": 5, "abc": 6, "<0xC3>": 7, "<0xA9>": 8},
              "merges": ["b c", ["a", "bc"]]}})");
}

Tokenizer read(const json& file) { return Tokenizer::from_json(file.dump(), "T"); }

std::string load_error(const std::string& pointer, const json& value) {
  json file = small_tokenizer();
  file[json::json_pointer(pointer)] = value;
  return error_of([&] { read(file); });
}

TEST(Tokenizer, MergesTheEarlierRuleFirst) {
  const Tokenizer t = read(small_tokenizer());
  EXPECT_EQ(t.encode("abcd", false), (Ids{6, 4}));
  EXPECT_EQ(t.encode("bcab", false), (Ids{5, 1, 2}));
  EXPECT_EQ(t.encode("abcd", true), (Ids{9, 6, 4}));
  EXPECT_EQ(t.encode("", true), (Ids{9}));
  EXPECT_EQ(t.vocab_size(), 11);
}

TEST(Tokenizer, UnknownCharactersFallBackToBytesThenToTheUnknownToken) {
  const Tokenizer t = read(small_tokenizer());
  EXPECT_EQ(t.encode("a\u00e9", false), (Ids{1, 7, 8}));
  EXPECT_EQ(t.encode("xy", false), (Ids{0, 0}));
  json fused = small_tokenizer();
  fused["model"]["fuse_unk"] = true;
  EXPECT_EQ(read(fused).encode("xya", false), (Ids{0, 1}));
}

TEST(Tokenizer, AddedTokensInTheTextAndSpecialOnesLeftOut) {
  const Tokenizer t = read(small_tokenizer());
  EXPECT_EQ(t.encode("a<s>b<mark>", false), (Ids{1, 9, 2, 10}));
  EXPECT_EQ(t.decode(Ids{1, 9, 2, 10}, false), "a<s>b<mark>");
  EXPECT_EQ(t.decode(Ids{1, 9, 2, 10}, true), "ab<mark>");
  EXPECT_EQ(t.token(10), "<mark>");
  EXPECT_EQ(t.id_of("bc"), 5);
  EXPECT_EQ(t.id_of("nothing"), std::nullopt);
}

// White space that an earlier token took is not given to a token that itself takes white space on its left.
TEST(Tokenizer, AddedTokensInWhiteSpaceAlreadyTaken) {
  const auto with = [](const json& mark, const json& line) {
    json file = small_tokenizer();
    file["added_tokens"][1]["normalized"] = false;
    file["added_tokens"][1].update(mark);
    file["added_tokens"].push_back({{"id", 11}, {"content", "\n"}, {"normalized", false}});
    file["added_tokens"][2].update(line);
    return read(file);
  };
  const json left = {{"lstrip", true}}, right = {{"rstrip", true}}, both = {{"lstrip", true}, {"rstrip", true}};
  EXPECT_EQ(with(json::object(), both).encode("a\n\nb", false), (Ids{1, 11, 2}));
  EXPECT_EQ(with(json::object(), right).encode("a\n\nb", false), (Ids{1, 11, 11, 2}));
  EXPECT_EQ(with(right, left).encode("a<mark>\nb", false), (Ids{1, 10, 2}));
  EXPECT_EQ(with(right, right).encode("a<mark>\nb", false), (Ids{1, 10, 11, 2}));
}

// "first" means at the start of the text as given. Expected values are those of tokenizers 0.23.3; ids of the mark are 7, of others their
// place in "abcfix".
TEST(Tokenizer, MetaspaceFirstAsksWhereAPieceComesFrom) {
  const auto ids_of = [](const json& normalizer, const json& split, const std::string& text) {
    json file = small_tokenizer();
    file["added_tokens"] = json::array();
    file["post_processor"] = nullptr;
    file["normalizer"] = normalizer;
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
    if (!split.is_null())
      file["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Split"}, {"pattern", {{"String", split}}}, {"behavior", "Isolated"}});
    file["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}});
    file["model"]["vocab"] = json::object({{"?", 0}, {"a", 1}, {"b", 2}, {"c", 3}, {"f", 4}, {"i", 5}, {"x", 6}, {"\u2581", 7}});
    file["model"]["merges"] = json::array();
    file["model"]["byte_fallback"] = false;
    return read(file).encode(text, false);
  };
  const auto replace = [](const json& pattern, const std::string& content) {
    return json{{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
  };
  const json none, strip = {{"type", "Strip"}}, nfkd = {{"type", "NFKD"}}, prepend = {{"type", "Prepend"}, {"prepend", "x"}};
  const json ab = {{"String", "ab"}}, a = {{"String", "a"}}, front = {{"Regex", "^"}};
  EXPECT_EQ(ids_of(none, none, "ab"), (Ids{7, 1, 2}));
  EXPECT_EQ(ids_of(strip, none, "  ab"), (Ids{1, 2}));
  EXPECT_EQ(ids_of(strip, none, "ab "), (Ids{7, 1, 2}));
  EXPECT_EQ(ids_of(replace(ab, "x"), none, "abc"), (Ids{6, 3})) << "of the last character that it replaces";
  EXPECT_EQ(ids_of(replace(a, "xb"), none, "ac"), (Ids{7, 6, 2, 3}));
  EXPECT_EQ(ids_of(replace(a, "xb"), "b", "ac"), (Ids{7, 6, 7, 2, 3})) << "both of the first character";
  EXPECT_EQ(ids_of(replace(a, ""), none, "abc"), (Ids{2, 3}));
  EXPECT_EQ(ids_of(replace(a, ""), none, "bac"), (Ids{7, 2, 3}));
  EXPECT_EQ(ids_of(replace(front, "x"), none, "ac"), (Ids{7, 6, 1, 3}));
  EXPECT_EQ(ids_of({{"type", "Sequence"}, {"normalizers", {strip, replace(front, "x")}}}, none, " "), Ids{}) << "nothing is left to match";
  EXPECT_EQ(ids_of(prepend, none, "ac"), (Ids{7, 6, 1, 3}));
  EXPECT_EQ(ids_of({{"type", "Sequence"}, {"normalizers", {strip, prepend}}}, none, " ac"), (Ids{6, 1, 3}));
  EXPECT_EQ(ids_of(nfkd, "i", "\uFB01a"), (Ids{7, 4, 7, 5, 1})) << "a ligature's two letters";
  EXPECT_EQ(ids_of(nfkd, "i", "fia"), (Ids{7, 4, 5, 1}));
}

// Which of the characters a to d and others an expression takes away, as Oniguruma reads it.
TEST(Tokenizer, WordsAndScriptsAreOnigurumas) {
  const auto left_of = [](const std::string& regex, const std::string& text) {
    json file = small_tokenizer();
    file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", regex}}}, {"content", ""}};
    file["added_tokens"] = json::array();
    file["post_processor"] = nullptr;
    file["model"]["byte_fallback"] = false;
    file["model"]["vocab"] = json::object({{"a", 1}, {"-", 2}, {"\u2167", 3}, {"\u00b2", 4}, {"\u3001", 5}, {"\u4e2d", 6}});
    file["model"]["merges"] = json::array();
    return read(file).encode(text, false);
  };
  const std::string words = "a-\u2167\u00b2", script = "\u3001\u4e2d";
  EXPECT_EQ(left_of("\\w", words), (Ids{2}));
  EXPECT_EQ(left_of("\\W", words), (Ids{1, 3, 4}));
  EXPECT_EQ(left_of("[\\w]", words), (Ids{2, 4}));
  EXPECT_EQ(left_of("[^\\w]", words), (Ids{1, 3}));
  EXPECT_EQ(left_of("[\\w&&[^a]]", words), (Ids{1, 2, 4}));
  EXPECT_EQ(left_of("\\p{Han}", script), (Ids{5}));
  EXPECT_EQ(left_of("[\\P{Han}]", script), (Ids{6}));
  EXPECT_EQ(left_of("\\p{^Han}", script), (Ids{6}));
  EXPECT_EQ(left_of("\\p{Lo}", script), (Ids{5}));
}

TEST(Tokenizer, TheProbesTokensAreBytes) {
  const Tokenizer t = Tokenizer::load(kProbeDir);
  EXPECT_EQ(t.vocab_size(), 259);
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  text += "\u00e9\U0001F600";
  Ids bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  EXPECT_EQ(t.encode(text, true), bytes);
  EXPECT_EQ(t.decode(bytes, true), text);
  EXPECT_EQ(t.encode("<s>a", false), (Ids{256, 'a'}));
  EXPECT_EQ(t.decode(Ids{'a', 0xC3, 0xE2, 0x82, 'b'}, false), "a\ufffd\ufffdb") << "one mark per ill-formed piece";
}

TEST(Tokenizer, SaysWhatTextsAndIdsItCannotTake) {
  const Tokenizer t = read(small_tokenizer());
  EXPECT_EQ(error_of([&] { t.encode("ab\xff", false); }), "byte 2 of the text is not UTF-8; T tokenizes UTF-8 only");
  EXPECT_EQ(error_of([&] { t.encode("\xed\xa0\x80", false); }), "byte 0 of the text is not UTF-8; T tokenizes UTF-8 only");
  EXPECT_EQ(error_of([&] { t.encode("a\xc3", false); }), "byte 1 of the text is not UTF-8; T tokenizes UTF-8 only");
  EXPECT_EQ(error_of([&] { t.decode(Ids{11}, false); }), "T: no token has id 11; ids lie in [0, 11)");
  EXPECT_EQ(error_of([&] { t.decode(Ids{-1}, true); }), "T: no token has id -1; ids lie in [0, 11)");
  json no_unknown = small_tokenizer();
  no_unknown["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(error_of([&] { read(no_unknown).encode("x", false); }),
            "T: 'model.unk_token' = '<unk>' is needed for this text, and is not in the vocabulary");
}

TEST(Tokenizer, NamesTheFileThatCannotBeRead) {
  EXPECT_EQ(error_of([] { Tokenizer::load("/nowhere"); }),
            "/nowhere/tokenizer.json: cannot be read; a tokenizer in Hugging Face's fast format is needed");
  EXPECT_EQ(error_of([] { Tokenizer::from_json("{\"model\": ", "T"); }), "T: not JSON from byte 11 on");
  EXPECT_EQ(error_of([] { Tokenizer::from_json("{\"model\": 1e316}", "T"); }), "T: a number in it is beyond what a double holds");
  EXPECT_EQ(error_of([] { Tokenizer::from_json("[]", "T"); }), "T: not a JSON object");
  EXPECT_EQ(error_of([] { Tokenizer::from_json("{}", "T"); }), "T: missing key 'model'");
}

TEST(Tokenizer, RefusesWhatItDoesNotSupport) {
  EXPECT_EQ(load_error("/model/type", "Unigram"), "T: 'model.type' = \"Unigram\" is not supported; supported: BPE");
  EXPECT_EQ(load_error("/model/dropout", 0.1), "T: 'model.dropout' = 0.1 is not supported; supported: null, 0");
  EXPECT_EQ(load_error("/model/end_of_word_suffix", "</w>"),
            "T: 'model.end_of_word_suffix' = \"</w>\" is not supported; supported: null, \"\"");
  EXPECT_EQ(load_error("/normalizer", {{"type", "Lowercase"}}),
            "T: 'normalizer.type' = \"Lowercase\" is not supported; supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Sequence");
  EXPECT_EQ(load_error("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "BertPreTokenizer"}}}}}),
            "T: 'pre_tokenizer.pretokenizers[0].type' = \"BertPreTokenizer\" is not supported; supported: ByteLevel, Metaspace, Split, "
            "Digits, Sequence");
  EXPECT_EQ(load_error("/post_processor", {{"type", "BertProcessing"}}),
            "T: 'post_processor.type' = \"BertProcessing\" is not supported; supported: ByteLevel, TemplateProcessing, Sequence");
  EXPECT_EQ(load_error("/decoder", {{"type", "CTC"}}),
            "T: 'decoder.type' = \"CTC\" is not supported; supported: ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, Sequence");
  json split = {{"type", "Split"}, {"pattern", {{"Regex", "a++"}}}, {"behavior", "Shuffled"}};
  EXPECT_EQ(load_error("/pre_tokenizer", split),
            "T: 'pre_tokenizer.behavior' = \"Shuffled\" is not supported; supported: Removed, Isolated, MergedWithPrevious, "
            "MergedWithNext, Contiguous");
  EXPECT_EQ(load_error("/model/merges/1", json::array({"a", "x"})),
            "T: 'model.merges': merge 1 ('a' and 'x') needs token 'x', which is not in the vocabulary");
  EXPECT_EQ(load_error("/model/merges/0", "a b"),
            "T: 'model.merges': merge 0 ('a' and 'b') needs token 'ab', which is not in the vocabulary");
  EXPECT_EQ(load_error("/model/merges/0", "a b c"),
            "T: 'model.merges[0]' = \"a b c\" is not supported; supported: \"LEFT RIGHT\", [\"LEFT\", \"RIGHT\"]");
  EXPECT_EQ(load_error("/model/merges/1", 7),
            "T: 'model.merges[1]' = 7 is not supported; supported: \"LEFT RIGHT\", [\"LEFT\", \"RIGHT\"]");
  EXPECT_EQ(load_error("/model/vocab/a", -1), "T: 'model.vocab.a' = -1 is not supported; supported: an id in [0, 16777216)");
  EXPECT_EQ(load_error("/model/vocab/a", 1.5), "T: 'model.vocab.a' = 1.5 is not supported; supported: an id in [0, 16777216)");
  EXPECT_EQ(load_error("/model/vocab/a", 2), "T: 'model.vocab': tokens 'a' and 'b' have the same id 2");
  EXPECT_EQ(load_error("/model/vocab", json::array()), "T: 'model.vocab' = [] is not supported; supported: an object of token: id");
  EXPECT_EQ(load_error("/added_tokens/1/id", 12), "T: 'added_tokens[1].id': token '<mark>' has id 12, but its place is 10");
  EXPECT_EQ(load_error("/added_tokens/1/content", "a"), "T: 'added_tokens[1].id': token 'a' has id 10, but its place is 1");
  EXPECT_EQ(load_error("/added_tokens/1/content", "<s>"), "T: 'added_tokens[1]': token '<s>' is named twice");
  EXPECT_EQ(load_error("/added_tokens/1/content", ""), "T: 'added_tokens[1].content': is empty");
  EXPECT_EQ(load_error("/added_tokens/1/lstrip", "yes"), "T: 'added_tokens[1].lstrip' = \"yes\" is not supported; supported: true, false");
  EXPECT_EQ(load_error("/post_processor/single/0/SpecialToken/id", "<e>"), "T: 'post_processor.special_tokens': missing key '<e>'");
  EXPECT_EQ(load_error("/post_processor/single/1/Sequence/id", "B"),
            "T: 'post_processor.single[1].Sequence.id' = \"B\" is not supported; supported: A");
}

TEST(Tokenizer, NamesBrokenExpressions) {
  const auto error = [](const std::string& regex) {
    return load_error("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}});
  };
  const std::string key = "T: 'pre_tokenizer.pattern.Regex': ";
  EXPECT_EQ(error("(a"), key + "end pattern with unmatched parenthesis (in '(a')");
  EXPECT_EQ(error("\\p{Klingon}"), key + "invalid character property name {Klingon} (in '\\p{Klingon}')");
}

TEST(Tokenizer, DeepNestingIsAnError) {
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  EXPECT_NE(load_error("/normalizer", nested).find("nested more than 32 deep"), std::string::npos);
  constexpr std::size_t kDeep = 1'000'000;
  for (const char* key : {"model", "unknown"})
    EXPECT_EQ(error_of([&] {
                Tokenizer::from_json(std::string("{\"") + key + "\": " + std::string(kDeep, '[') + std::string(kDeep, ']') + "}", "T");
              }),
              "T: values in it are nested deeper than 64 levels");
}

TEST(Tokenizer, WhatIsNoFileOfItsOwnIsNamed) {
  const std::string dir = testing::TempDir() + "kvlab_tokenizer_" + std::to_string(::getpid()), path = dir + "/tokenizer.json";
  const auto error = [&] { return error_of([&] { Tokenizer::load(dir); }); };
  std::filesystem::create_directories(path);
  EXPECT_EQ(error(), path + ": is not a regular file; a JSON file is expected");
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(error(), path + ": is not a regular file; a JSON file is expected");
  std::filesystem::remove(path);
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  EXPECT_EQ(error(), path + ": is a Git LFS pointer, not the file that it stands for; 'git lfs pull' fetches that");
  std::filesystem::remove_all(dir);
  EXPECT_EQ(error(), path + ": cannot be read; a tokenizer in Hugging Face's fast format is needed");
}

// Forty steps that each double what they are given.
TEST(Tokenizer, AChainThatGrowsWithoutEndIsAnError) {
  const auto error = [](const std::string& part, const std::string& list, const json& step) {
    json file = small_tokenizer();
    file[part] = {{"type", "Sequence"}, {list, json::array()}};
    for (int i = 0; i < 40; ++i) file[part][list].push_back({{"type", "Sequence"}, {list, json::array({step})}});
    const auto tokenizer = read(file);
    return error_of([&] { tokenizer.decode(tokenizer.encode("d", false), false); });
  };
  const json doubling = {{"type", "Replace"}, {"pattern", {{"String", "d"}}}, {"content", "dd"}};
  const json twice = {{"type", "TemplateProcessing"},
                      {"single", {{{"Sequence", {{"id", "A"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                      {"special_tokens", json::object()}};
  const json bytes = {{"type", "ByteLevel"}, {"use_regex", false}};  // a space becomes two bytes, and each of them two
  const std::string rest = " bytes (or ids) of 1; at most 64 times as much is supported";
  EXPECT_EQ(error("normalizer", "normalizers", doubling), "T: 'normalizer' makes 8192" + rest);
  EXPECT_EQ(error("post_processor", "processors", twice), "T: 'post_processor' makes 8192" + rest);
  EXPECT_EQ(error("decoder", "decoders", doubling), "T: 'decoder' makes 8192" + rest);
  EXPECT_TRUE(error("pre_tokenizer", "pretokenizers", bytes).starts_with("T: 'pre_tokenizer' makes "));
}

// One step that would make 1 TB of 1 MB, or 100 billion ids of a million: nothing of it is made.
TEST(Tokenizer, AStepThatGrowsWithoutEndIsAnError) {
  const std::size_t many = short_run() ? 100'000 : 1'000'000;
  const auto error = [&](const std::string& part, const json& step) {
    json file = small_tokenizer();
    file["post_processor"] = nullptr;
    file[part] = step;
    const auto tokenizer = read(file);
    return error_of([&] { tokenizer.decode(tokenizer.encode(std::string(many, 'd'), false), false); });
  };
  const std::string rest = " bytes (or ids) of " + std::to_string(many) + "; at most 64 times as much is supported";
  const auto made = [&](const std::string& part, std::size_t size) { return "T: '" + part + "' makes " + std::to_string(size) + rest; };
  json replace = {{"type", "Replace"}, {"pattern", {{"String", "d"}}}, {"content", std::string(many, 'x')}};
  EXPECT_EQ(error("normalizer", replace), made("normalizer", many * many));
  EXPECT_EQ(error("decoder", replace), made("decoder", 65 * many));  // token by token
  EXPECT_EQ(error("decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, replace}}}), made("decoder", many * many));
  replace["pattern"] = {{"Regex", "d"}};
  EXPECT_EQ(error("normalizer", replace), made("normalizer", many * many));
  json parts = json::array();
  for (std::size_t i = 0; i < many / 10; ++i) parts.push_back({{"Sequence", {{"id", "A"}}}});
  EXPECT_EQ(error("post_processor", {{"type", "TemplateProcessing"}, {"single", parts}, {"special_tokens", json::object()}}),
            made("post_processor", many / 10 * many));
}

// One text without a pre-tokenizer is one word: merging must not take quadratic time.
TEST(Tokenizer, ALongWordIsMergedInTime) {
  std::string text;
  Ids expected;
  for (int i = 0; i < 200'000; ++i) text += "abcd", expected.insert(expected.end(), {6, 4});
  EXPECT_EQ(read(small_tokenizer()).encode(text, false), expected);
}

}  // namespace
}  // namespace kvlab
