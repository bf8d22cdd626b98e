// The functions of commands that compute; computing.cpp makes them known to the command line (apps/computing.h).
#pragma once

#include "apps/computing.h"

namespace molen::apps {

int run_train(const ConfigOptions& options, const train::TrainOptions& train_options);
int run_bench(const ConfigOptions& options, int steps);
int run_calibrate(const ConfigOptions& options, const CalibrateCall& call);
int run_proof(const VerifyArguments& arguments);
int run_generate(const GenerateCall& call);
int run_eval_logits(const infer::EvalLogitsOptions& options);

}  // namespace molen::apps
