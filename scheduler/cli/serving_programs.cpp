#include "scheduler/cli/serving_programs.hpp"

namespace troupe::cli {
namespace {

using Json = nlohmann::ordered_json;

Result<Json> as_answer(int pid, const Result<ServingAnswer>& answer) {
  if (!answer) return answer.error();
  Json object = Json::parse(answer->text, nullptr, false);
  if (!object.is_object())
    return ErrorInfo{ErrorCode::kBadInput,
                     "the answer of process " + std::to_string(pid) + " is not understood", "it is no object",
                     "use the troupe of the same version"};
  const auto error = object.find("error");
  if (error == object.end()) return object;
  const auto part = [&](const char* key) {
    const auto at = error->is_object() ? error->find(key) : error->end();
    return error->is_object() && at != error->end() && at->is_string() ? at->get<std::string>()
                                                                       : std::string();
  };
  return ErrorInfo{ErrorCode::kRefused, part("what"), part("why"), part("todo")};
}

}  // namespace

std::vector<Result<Json>> ask_programs(std::span<const int> pids, const Json& question, Duration timeout) {
  const auto answers =
      ask_serving(pids, question.dump(-1, ' ', false, Json::error_handler_t::replace), timeout);
  std::vector<Result<Json>> all;
  for (std::size_t i = 0; i < pids.size(); ++i) all.push_back(as_answer(pids[i], answers[i]));
  return all;
}

Result<Json> ask_program(int pid, const Json& question, Duration timeout) {
  return std::move(ask_programs(std::span(&pid, 1), question, timeout).front());
}

}  // namespace troupe::cli
