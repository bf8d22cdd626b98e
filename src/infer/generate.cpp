#include "infer/generate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/safetensors.h"
#include "data/tokenizer/unicode.h"
#include "plan/resolve.h"

namespace molen::infer {
namespace {

// Returns how many bytes at the end may be the start of a longer UTF-8 sequence.
std::size_t incomplete_tail(const std::string& text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xc0) == 0x80) continue;
    const std::size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return need > back ? back : 0;
  }
  return 0;
}

// Returns the length of the longest end of `text` that is a proper start of a stop string: it may not be shown yet.
std::size_t held_back(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t most = incomplete_tail(text);
  for (const auto& stop : stops)
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > most; --n)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        most = n;
        break;
      }
  return most;
}

// Returns the model's ids that belong to no token: the model's vocabulary may be padded beyond the tokenizer's.
at::Tensor ids_without_token(const data::Tokenizer& tokenizer, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < vocabulary; ++id)
    if (tokenizer.token_bytes(static_cast<data::TokenId>(id)).empty()) ids.push_back(id);
  if (static_cast<std::int64_t>(ids.size()) == vocabulary)
    throw UsageError("the tokenizer has no token for any of the model's {} ids: it is not the model's", vocabulary);
  return at::tensor(ids, at::kLong);
}

}  // namespace

std::string generate(const LoadedModel& model, const std::string& prompt, const GenerateOptions& o,
                     const std::function<void(const std::string&)>& emit) {
  if (!model.tokenizer) throw UsageError("{}: no tokenizer.json lies with the model", model.origin);
  for (const auto& stop : o.stops)
    if (stop.empty()) throw UsageError("--stop: an empty string");
  const auto& tokenizer = *model.tokenizer;
  std::vector<std::int32_t> ids;
  // Without a prompt the model starts a document. In training a document follows the end of another one.
  if (const auto bos = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id(); bos && prompt.empty())
    ids.push_back(static_cast<std::int32_t>(*bos));
  for (const auto id : tokenizer.encode(prompt)) ids.push_back(static_cast<std::int32_t>(id));

  const int threads = o.threads > 0 ? o.threads : plan::auto_threads(1);
  at::set_num_threads(threads);
  const std::int64_t limit =
      std::min(model.weights->arch().max_sequence, static_cast<std::int64_t>(ids.size()) + o.max_tokens);
  if (static_cast<std::int64_t>(ids.size()) > model.weights->arch().max_sequence)
    throw UsageError("the prompt has {} tokens; the model's limit is {}", ids.size(),
                     model.weights->arch().max_sequence);
  Inference inference(model.weights, threads, std::max<std::int64_t>(limit, 1));
  const c10::InferenceMode mode;
  const at::Tensor unusable = ids_without_token(tokenizer, model.weights->arch().vocabulary);
  std::string text;
  std::size_t shown = 0;
  at::Tensor logits = inference.advance(ids);
  for (std::int64_t i = 0; i < o.max_tokens; ++i) {
    if (unusable.numel() > 0) logits = logits.index_fill(0, unusable, -std::numeric_limits<double>::infinity());
    const std::int32_t next = sample(logits, o.sampling, static_cast<std::int64_t>(ids.size()));
    if (tokenizer.eos_id() && next == static_cast<std::int32_t>(*tokenizer.eos_id())) break;
    ids.push_back(next);
    const data::TokenId one[] = {static_cast<data::TokenId>(next)};
    text += tokenizer.decode(one);
    std::size_t cut = std::string::npos;
    for (const auto& stop : o.stops) cut = std::min(cut, text.find(stop));
    if (cut != std::string::npos) {
      text.resize(cut);
      break;
    }
    const std::size_t ready = text.size() - held_back(text, o.stops);
    if (emit && ready > shown) emit(replace_invalid_utf8(std::string_view(text).substr(shown, ready - shown)));
    shown = std::max(shown, ready);
    if (static_cast<std::int64_t>(ids.size()) >= limit || i + 1 == o.max_tokens) break;
    if (o.use_cache) {
      logits = inference.advance({&ids.back(), 1});
    } else {
      const at::Tensor all = inference.logits(ids, 1, static_cast<std::int64_t>(ids.size()));
      logits = all.select(0, 0).select(0, all.size(1) - 1);
    }
  }
  if (emit && text.size() > shown) emit(replace_invalid_utf8(std::string_view(text).substr(shown)));
  return replace_invalid_utf8(text);
}

void eval_logits(const EvalLogitsOptions& o) {
  const std::string origin = o.tokens.string();
  const Json json = read_json(o.tokens);
  if (!json.is_array() || json.empty()) throw UsageError("{}: expected an array of token-id arrays", origin);
  std::vector<std::int32_t> ids;
  const auto batch = static_cast<std::int64_t>(json.size());
  std::int64_t sequence = -1;
  for (const auto& row : json) {
    if (!row.is_array() || row.empty()) throw UsageError("{}: expected an array of token-id arrays", origin);
    if (sequence >= 0 && static_cast<std::int64_t>(row.size()) != sequence)
      throw UsageError("{}: the arrays differ in length", origin);
    sequence = static_cast<std::int64_t>(row.size());
    for (const auto& id : row) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > INT32_MAX)
        throw UsageError("{}: {} is not a token id", origin, id.dump());
      ids.push_back(id.get<std::int32_t>());
    }
  }
  const LoadedModel model = load_model(o.model);
  if (sequence > model.weights->arch().max_sequence)
    throw UsageError("{}: {} tokens are more than the model's limit of {}", origin, sequence,
                     model.weights->arch().max_sequence);
  const int threads = o.threads > 0 ? o.threads : plan::auto_threads(1);
  at::set_num_threads(threads);
  Inference inference(model.weights, threads, sequence);
  const c10::InferenceMode mode;
  checkpoint::SafetensorsWriter writer(o.output,
                                       {{"logits", DType::kF32, {batch, sequence, model.weights->arch().vocabulary}}});
  const std::int64_t row_bytes = sequence * model.weights->arch().vocabulary * 4;
  for (std::int64_t b = 0; b < batch; ++b) {
    const at::Tensor logits =
        inference.logits({ids.data() + b * sequence, static_cast<std::size_t>(sequence)}, 1, sequence).contiguous();
    writer.write("logits", static_cast<std::uint64_t>(b * row_bytes), logits.data_ptr(),
                 static_cast<std::uint64_t>(row_bytes));
  }
  writer.finish();
}

}  // namespace molen::infer
