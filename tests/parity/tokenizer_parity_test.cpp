#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"

namespace kvlab {
namespace {

const std::string kTokenizers = KVLAB_SOURCE_DIR "/tests/parity/tokenizer/";

nlohmann::json tokenizer_goldens(const std::string& path) { return nlohmann::json::parse(std::ifstream(kTokenizers + path)); }

class TokenizerParity : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerParity, IdsAndTextsAreThoseOfHuggingFace) {
  const Tokenizer tokenizer = Tokenizer::load(kTokenizers + GetParam());
  const nlohmann::json texts = tokenizer_goldens("texts.json"),
                       cases = tokenizer_goldens(std::string(GetParam()) + "/goldens.json")["cases"];
  ASSERT_GE(texts.size(), 70u);
  ASSERT_EQ(texts.size(), cases.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(texts[i].dump());
    const std::vector<std::int32_t> ids = tokenizer.encode(texts[i].get<std::string>(), true);
    EXPECT_EQ(ids, cases[i]["ids"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(tokenizer.encode(texts[i].get<std::string>(), false), cases[i]["plain"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(tokenizer.decode(ids, false), cases[i]["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, true), cases[i]["decoded_without_special"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerParity, testing::Values("gpt2", "llama3", "qwen2", "llama2", "mistral", "metaspace", "mixed"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvlab
