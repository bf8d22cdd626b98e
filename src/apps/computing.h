// The commands that compute on tensors. They need libtorch, and loading it takes longer than most other commands run,
// so two programs have the same command line: `molen` is free of libtorch, and `molen-compute` beside it has it
// (docs/decisions/0020-two-programs.md).
#pragma once

#include <string>

#include "apps/cli.h"
#include "apps/verify.h"
#include "infer/options.h"
#include "measure/options.h"
#include "plan/resolve.h"
#include "train/options.h"

namespace molen::apps {

// The build of both programs, which each of them knows without libtorch.
struct Build {
  bool libtorch, cuda;  // whether there is a molen-compute, and whether its libtorch is for CUDA
};
inline constexpr Build kBuild{MOLEN_WITH_LIBTORCH, MOLEN_WITH_CUDA};

struct CalibrateCall {
  std::string output = "calibration.json", compute = "auto", format = "text";  // compute: "auto", or a list of types
  measure::CalibrateOptions options;  // threads 0: all cores, divided by the ranks
  double minutes = 3.0;
};

struct GenerateCall {
  std::string model, prompt;
  infer::GenerateOptions options;
};

// The functions that need libtorch. Those of commands return the exit status.
struct Computing {
  int (*train)(const ConfigOptions& options, const train::TrainOptions& train_options);
  int (*calibrate)(const ConfigOptions& options, const CalibrateCall& call);
  int (*bench)(const ConfigOptions& options, int steps);  // one JSON line
  int (*doctor)(bool json, bool measure);
  int (*verify)(const VerifyArguments& arguments);  // without --static
  int (*generate)(const GenerateCall& call);
  int (*eval_logits)(const infer::EvalLogitsOptions& options);
  bool (*has_cuda)();  // whether libtorch has a CUDA device here
  // As measure::precision_rates. `device`: index of a CUDA device, -1 for the host.
  plan::PrecisionRates (*precision_rates)(int threads, int device);
  // Returns what tells the machine of this process and its version of molen from others. The ranks of a launcher may be
  // on other machines; those of a partition are told by its name.
  std::string (*this_machine)();
};

// In molen-compute, returns its functions. In molen it never returns: the process becomes molen-compute with the same
// words, which starts the command anew. So a command calls it before it writes or prints anything. Throws
// MissingFileError when there is no molen-compute beside molen, Error when it cannot be started, and UsageError in a
// build without libtorch.
const Computing& computing();

// Returns the description of a command that computes; in a build without libtorch it says that the command needs it.
std::string of_computing(std::string description);

}  // namespace molen::apps
