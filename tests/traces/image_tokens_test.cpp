#include "traces/image_tokens.h"

#include <memory>

#include "tests/traces/trace_test_files.h"

namespace kvlab {
namespace {

constexpr const char* kHead = "arrival_ns,prompt_tokens,output_tokens,hash_tokens,hashes,images\n";

std::unique_ptr<TraceSource> trace_of_rows(const std::string& rows) { return std::make_unique<InMemoryTrace>(read_all(kHead + rows)); }

TEST(ImageTokens, ComeAfterTheText) {
  ImageTokens trace(trace_of_rows("0,10,5,,,3\n1,10,5,,,\n2,10,5,,,0\n"), 100);
  TraceRequest request;
  for (const std::int32_t tokens : {310, 10, 10}) {
    ASSERT_TRUE(trace.next(request));
    EXPECT_EQ(std::tuple(request.prompt_tokens, images_of(request)), std::tuple(tokens, tokens == 310 ? 3 : 0));
  }
  EXPECT_FALSE(trace.next(request));
}

// Hashes of chunks of 4 tokens over prompt and output. Those of the whole chunks of the text stay.
TEST(ImageTokens, TokensAfterTheTextHaveNoHashes) {
  ImageTokens trace(trace_of_rows("0,10,6,4,1 2 3 4,1\n1,3,9,4,1 2 3,1\n2,10,6,4,1 2 3 4,\n"), 100);
  TraceRequest request;
  ASSERT_TRUE(trace.next(request));
  EXPECT_EQ(request.hashes.size(), 2U);
  ASSERT_TRUE(trace.next(request));
  EXPECT_EQ(std::tuple(request.hashes.empty(), request.hash_tokens), std::tuple(true, 0));
  ASSERT_TRUE(trace.next(request));
  EXPECT_EQ(request.hashes.size(), 4U);
}

TEST(ImageTokens, AreRefusedWhereNothingSaysWhatAnImageIs) {
  ImageTokens trace(trace_of_rows("0,10,5,,,\n1,10,5,,,2\n"), 0);
  TraceRequest request;
  ASSERT_TRUE(trace.next(request));
  const std::string error = error_of([&] { trace.next(request); });
  EXPECT_NE(error.find("request 1 of the trace (counted from 0) has 2 images"), std::string::npos) << error;
}

TEST(ImageTokens, CountsAreNotNegative) {
  const std::string error = error_of([&] { trace_of_rows("0,10,5,,,-1\n"); });
  EXPECT_THAT(error, has_all({"f:2", "column 'images'"}));
}

}  // namespace
}  // namespace kvlab
