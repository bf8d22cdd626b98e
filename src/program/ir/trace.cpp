#include "program/ir/trace.h"

#include <utility>

namespace molen::program {

std::vector<store::TraceSpan> spans_of(const std::vector<Expanded>& ops, const Timeline& timeline, double origin,
                                       std::int64_t step, std::int64_t process) {
  std::vector<store::TraceSpan> spans;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Step& s = *ops[i].step;
    const OpTime& time = timeline.ops.at(i);
    Json args{{"step", step},
              {"op", ops[i].op},
              {"micro_batch", ops[i].micro_batch},
              {"bytes", s.moved.value},
              {"flops", s.hardware_flops.value}};
    if (time.waited_s > 0) args["waited_s"] = time.waited_s;
    // An epilogue lies within its op's span. Its seconds are known (not on devices), but not when it began.
    const std::vector<Work> work = work_of(s, time);
    for (std::size_t k = 1; k < work.size(); ++k) {
      Json& epilogue = args[work[k].kind] = {{"bytes", work[k].bytes}};
      if (work[k].seconds > 0) epilogue["seconds"] = work[k].seconds;
    }
    spans.push_back({kind_of(s.op), std::string(name_of(s.phase)), std::string(name_of(s.stream)),
                     origin + time.start_s, origin + time.end_s, std::move(args), process});
  }
  return spans;
}

}  // namespace molen::program
