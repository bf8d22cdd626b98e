// Tables of runs: refused with a UsageError, or read into rows that each have a reason or a run whose sizes agree. The
// line of such a run is JSON that reads back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "plan/runs.h"

namespace {

using molen::plan::Run;

bool sizes_agree(const Run& r) {
  if (r.layers < 1 || r.hidden < 1 || r.ffn < 1 || r.vocabulary < 1 || r.sequence < 1 || r.global_batch < 1)
    return false;
  if (r.heads < 1 || r.hidden % r.heads != 0 || r.kv_heads < 1 || r.heads % r.kv_heads != 0) return false;
  if (r.gpus < 1 || r.gpus_per_node < 1 || r.gpu.empty() || r.mlp.empty() || r.precision.empty()) return false;
  if (r.tp < 1 || r.pp < 1 || r.dp < 1 || r.cp < 1 || r.chunks.value_or(1) < 1) return false;
  const std::int64_t ranks = std::int64_t{r.tp} * r.pp * r.dp * r.cp;
  if (r.has_layout ? ranks != r.gpus : ranks != r.cp || r.gpus % r.cp != 0) return false;
  return r.global_batch % (r.dp * r.micro_batch.value_or(1)) == 0;
}

void check_line(const molen::Json& line, const std::string& id) {
  if (molen::parse_json(line.dump(), "line").at("run_id").get<std::string>() != id) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen::plan;
  try {
    RunPrediction p;
    p.step_s = 1.0, p.model_flops = 1e15, p.memory_bytes = 1e9;
    for (const RunRow& row : read_runs({reinterpret_cast<const char*>(data), size}, "fuzz")) {
      if (row.id.empty()) std::abort();
      if (row.run) {
        if (row.run.value().id != row.id || !sizes_agree(row.run.value())) std::abort();
        check_line(to_json(row.run.value(), p), row.id);
      } else {
        if (row.run.reason().empty()) std::abort();
        check_line(to_json(row.id, row.run.reason()), row.id);
      }
    }
  } catch (const molen::UsageError&) {
  }
  return 0;
}
