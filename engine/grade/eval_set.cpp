#include "engine/grade/eval_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

using nlohmann::json;

class EvalFile {
 public:
  EvalFile(std::string path, const Encode& encode, const CountBytes& count_bytes)
      : path_(std::move(path)), encode_(encode), count_bytes_(count_bytes) {
    refuse_special_file(path_, "a file");
    stream_.open(path_);
    if (!stream_) throw InputError(open_error(path_));
  }

  bool next(EvalSample& sample) {
    std::string line;
    do {
      if (!std::getline(stream_, line)) return false;
      if (++line_ == 1) refuse_lfs_pointer(line, path_);
    } while (line.find_first_not_of(" \t\r") == std::string::npos);
    const json row = parse(line);
    if (!row.is_object()) fail("not a JSON object: every line is a sample {task, length, prompt, turns}");
    check_names(row, {"task", "length", "prompt", "turns"});
    sample = {};
    sample.number = number_++;
    sample.task = row.contains("task") && row["task"].is_string() ? row["task"].get<std::string>() : "";
    if (sample.task.empty()) fail("needs 'task': a name");
    sample.length = length_of(row);
    sample.context = ids_of(row, "prompt", true);
    if (!row.contains("turns") || !row["turns"].is_array() || row["turns"].empty())
      fail("needs 'turns': a list of {question, answer}, not empty");
    for (const json& turn : row["turns"]) {
      if (!turn.is_object()) fail("'turns' holds something other than {question, answer}");
      check_names(turn, {"question", "answer"});
      EvalTurn t{ids_of(turn, "question", false), ids_of(turn, "answer", false), 0};
      if (t.answer.empty()) fail("an answer is empty");
      if (turn["answer"].is_string())
        t.answer_bytes = static_cast<std::int32_t>(turn["answer"].get_ref<const std::string&>().size());
      else if (count_bytes_)
        t.answer_bytes = count_bytes_(t.answer);
      sample.turns.push_back(std::move(t));
    }
    if (sample.context.empty()) fail("the prompt is empty");
    return true;
  }

  void check(const EvalSample& sample, const EvalLimits& limits) const {
    if (limits.max_tokens > 0 && sample.num_tokens() > limits.max_tokens)
      fail(fmt::format("prompt, questions and answers have {} tokens together, more than the {} that model '{}' takes", sample.num_tokens(),
                       limits.max_tokens, limits.model));
    const auto check_ids = [&](const char* key, const std::vector<std::int32_t>& ids) {
      for (const std::int32_t id : ids)
        if (limits.vocab_size > 0 && id >= limits.vocab_size)
          fail(fmt::format("'{}' has token id {}, outside [0, {}) of model '{}'", key, id, limits.vocab_size, limits.model));
    };
    check_ids("prompt", sample.context);
    for (const EvalTurn& turn : sample.turns) check_ids("question", turn.question), check_ids("answer", turn.answer);
  }

 private:
  [[noreturn]] std::string fail(const std::string& what) const { throw InputError(fmt::format("{}:{}: {}", path_, line_, what)); }

  json parse(const std::string& line) const {
    refuse_deep_json(line, fmt::format("{}:{}", path_, line_));
    try {
      return json::parse(line);
    } catch (const json::parse_error& e) {
      fail(fmt::format("not JSON from byte {} of the line on: every line is a sample {{task, length, prompt, turns}}", e.byte));
    } catch (const json::out_of_range&) {
      fail("a number is beyond what a double holds");
    }
  }

  // Other keys are allowed unless they look like a misspelled required one.
  void check_names(const json& from, const std::vector<std::string>& names) const {
    for (const auto& [key, value] : from.items()) {
      const std::string near = nearest_name(key, names);
      if (!near.empty() && !from.contains(near)) fail(fmt::format("unknown key '{}'; did you mean '{}'?", key, near));
    }
  }

  std::int32_t length_of(const json& row) const {
    if (!row.contains("length")) return 0;
    const json& value = row["length"];
    if (!value.is_number_integer() || value < 0 || value > (1 << 28)) fail("'length' is not a count of tokens");
    return value.get<std::int32_t>();
  }

  std::vector<std::int32_t> ids_of(const json& from, const char* key, bool is_start) const {
    if (!from.contains(key)) fail(fmt::format("needs '{}': text or a list of token ids", key));
    const json& value = from[key];
    if (value.is_string()) return encode_(value.get<std::string>(), is_start);
    if (!value.is_array()) fail(fmt::format("'{}' is neither text nor a list of token ids", key));
    std::vector<std::int32_t> ids;
    for (const json& id : value) {
      if (!id.is_number_integer() || id < 0 || id > (1 << 30))
        fail(fmt::format("'{}' holds {}, which is no token id", key, short_json(id)));
      ids.push_back(id.get<std::int32_t>());
    }
    return ids;
  }

  std::string path_;
  const Encode& encode_;
  const CountBytes& count_bytes_;
  std::ifstream stream_;
  std::int64_t line_ = 0;
  std::int32_t number_ = 0;
};

template <class T>
bool is_among(const std::vector<T>& wanted, const T& value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

}  // namespace

std::int32_t EvalSample::num_tokens() const {
  std::size_t n = context.size();
  for (const EvalTurn& t : turns) n += t.question.size() + t.answer.size();
  return static_cast<std::int32_t>(n);
}

std::vector<EvalSample> read_eval_set(const std::string& file, const EvalChoice& choice, const Encode& encode, const EvalLimits& limits,
                                      const CountBytes& count_bytes) {
  EvalFile rows(file, encode, count_bytes);
  std::vector<EvalSample> samples;
  std::set<std::string> tasks;
  std::set<std::int32_t> lengths;
  std::map<std::pair<std::string, std::int32_t>, std::int32_t> taken;
  for (EvalSample sample; rows.next(sample);) {
    tasks.insert(sample.task);
    lengths.insert(sample.length);
    if (!is_among(choice.tasks, sample.task) || !is_among(choice.lengths, sample.length)) continue;
    if (choice.per_task > 0 && ++taken[{sample.task, sample.length}] > choice.per_task) continue;
    rows.check(sample, limits);
    samples.push_back(std::move(sample));
  }
  for (const std::string& task : choice.tasks)
    if (!tasks.contains(task))
      throw InputError(fmt::format("{}: has no task '{}'{}", file, task, suggestion(task, {tasks.begin(), tasks.end()})));
  for (const std::int32_t length : choice.lengths)
    if (!lengths.contains(length))
      throw InputError(fmt::format("{}: has no samples of length {}; lengths are {}", file, length, fmt::join(lengths, ", ")));
  if (samples.empty()) throw InputError(file + ": holds no samples");
  return samples;
}

}  // namespace kvlab
