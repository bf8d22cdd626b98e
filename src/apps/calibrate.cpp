// molen calibrate: its command line.
#include "apps/cli.h"
#include "apps/computing.h"

namespace molen::apps {

void add_calibrate_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand(
      "calibrate",
      of_computing(
          "measures this machine and writes a calibration, from which runs on it are predicted. Without options: one "
          "rank with all cores, 2, 4 and 8 ranks that share them, and one rank with one thread, in fp32 and bf16; a "
          "run can be predicted if one of them has as many threads a rank and its type. With --ranks, --threads, "
          "several ranks of a launcher or a CONFIG: only these conditions. A CONFIG limits the width to that of its "
          "model"));
  auto call = std::make_shared<CalibrateCall>();
  call->options.threads = 0;
  auto options = add_config_options(*verb);
  verb->add_option("--output", call->output, "file; other conditions in it are kept")->capture_default_str();
  verb->add_option("--threads", call->options.threads, "threads of each rank (0: the cores divided by the ranks)")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--compute", call->compute,
                   "types to measure: one of fp32, bf16, fp16 and fp64, or several, as fp32,fp64; auto: fp32 and bf16 "
                   "or, with conditions, the faster of those that a training's \"auto\" compares, and both where they "
                   "are nearly equal")
      ->capture_default_str();
  verb->add_option("--rounds", call->options.rounds, "times that every shape is measured, as far as --minutes allows")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--minutes", call->minutes,
                   "time for all measurements together; each shape is measured once, even if that takes longer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--widest", call->options.widest,
                   "largest width of the residual stream to measure, 128 or more (0: all widths, and in fp64, whose "
                   "kernels are slow, up to 192); a small width takes seconds, and the costs of wider models are "
                   "extrapolated")
      ->check(CLI::NonNegativeNumber);
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, call, format] {
    call->format = *format;
    chosen.action = [=] { return computing().calibrate(*options, *call); };
  });
}

}  // namespace molen::apps
