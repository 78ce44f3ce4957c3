#pragma once

#include <memory>

#include "traces/line_reader.h"
#include "traces/row_reader.h"

namespace kvlab {

// One reader per public format; docs/traces.md has the columns. All throw InputError (file:line, column) on a row that
// cannot be used.
using MakeReader = std::unique_ptr<RowReader>(std::unique_ptr<LineReader>, const ReaderOptions&);

MakeReader read_azure;          // TIMESTAMP,ContextTokens,GeneratedTokens; dates, first row = 0
MakeReader read_burstgpt;       // Timestamp,...,Request tokens,Response tokens,...; seconds, first row = 0
MakeReader read_vidur;          // [arrived_at,]num_prefill_tokens,num_decode_tokens; seconds
MakeReader read_splitwise;      // arrival_timestamp,...,prompt_size,token_size; seconds
MakeReader read_mooncake;       // jsonl: timestamp (ms), input_length, output_length, hash_ids; Dynamo's names too
MakeReader read_bailian;        // jsonl: chat_id, parent_chat_id, timestamp (s), input_length, output_length, hash_ids
MakeReader read_llmservingsim;  // jsonl: arrival_time_ns, input_toks, output_toks, token ids; agentic sessions
MakeReader read_kvlab_csv;      // every field of TraceRequest, as write_trace() writes them
MakeReader read_kvlab_jsonl;

}  // namespace kvlab
