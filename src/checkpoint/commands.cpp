#include "checkpoint/commands.h"

#include <memory>
#include <ostream>

#include "arch/json.h"
#include "arch/parameters.h"
#include "base/error.h"
#include "base/json_fields.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/digest.h"
#include "checkpoint/folder.h"
#include "checkpoint/huggingface.h"
#include "store/lease.h"

namespace molen::checkpoint {
namespace {

std::string_view name_of(Problem problem) {
  return problem == Problem::kDamaged        ? "damaged"
         : problem == Problem::kUnreadable   ? "cannot be read now"
         : problem == Problem::kOtherVersion ? "of another version"
                                             : "complete";
}

void print_notes(const std::vector<std::string>& notes, std::ostream& err) {
  for (const std::string& note : notes) err << note << '\n';
}

arch::Architecture architecture_of(const Checkpoint& checkpoint) {
  const std::string origin = (checkpoint.path() / "state.json").string();
  if (!checkpoint.state().is_object() || !checkpoint.state().contains("arch")) {
    throw UsageError("{}: says nothing of the model ('arch'), so it cannot be exported", origin);
  }
  return arch::architecture_from_json(checkpoint.state()["arch"], origin + ": arch");
}

Json to_json(const TokenIds& ids) {
  return {{"bos", ids.bos ? Json(*ids.bos) : Json(nullptr)},
          {"eos", ids.eos},
          {"pad", ids.pad ? Json(*ids.pad) : Json(nullptr)}};
}

TokenIds tokens_of(const Checkpoint& checkpoint) {
  TokenIds ids;
  if (!checkpoint.state().contains("special_tokens")) return ids;
  const JsonFields f(checkpoint.state()["special_tokens"],
                     (checkpoint.path() / "state.json").string() + ": special_tokens");
  if (f.find("bos")) ids.bos = f.integer("bos");
  if (f.find("pad")) ids.pad = f.integer("pad");
  if (const Json* eos = f.find("eos"); eos && eos->is_array()) {
    for (const Json& id : *eos)
      if (id.is_number_unsigned()) ids.eos.push_back(id.get<std::int64_t>());
  }
  return ids;
}

// The weights must have the shapes of the architecture, or an export would mix up other tensors.
void check_weights(const Checkpoint& checkpoint, const arch::Architecture& arch) {
  for (const arch::Parameter& p : arch::parameters(arch)) {
    const StoredTensor& stored = checkpoint.tensor(p.name);
    if (stored.shape != p.shape || !is_floating(stored.dtype)) {
      throw UsageError("{}: tensor '{}' is {} [{}], the model needs [{}] of a floating type",
                       checkpoint.path().string(), p.name, name_of(stored.dtype), fmt::join(stored.shape, ", "),
                       fmt::join(p.shape, ", "));
    }
  }
}

void refuse_to_write_over(const fs::path& directory) {
  if (fs::is_directory(directory) && (!steps_in(directory).empty() || fs::exists(directory / "state.json")))
    throw UsageError("{}: holds checkpoints already; nothing is written over", directory.string());
}

}  // namespace

void list_command(const ListOptions& options, std::ostream& out, std::ostream& err) {
  if (!fs::is_directory(options.path)) throw UsageError("{}: no such directory", options.path.string());
  std::vector<std::string> notes;
  const fs::path nested = options.path / "checkpoints";
  const std::vector<Listed> all = list(fs::is_directory(nested) ? nested : options.path, &notes);
  Json rows = Json::array();
  if (!options.json) out << fmt::format("{:>10}  {:>8}  {:>12}  {}\n", "step", "tensors", "bytes", "path");
  for (const Listed& listed : all) {
    if (listed.problem != Problem::kNone) {
      rows.push_back({{"path", listed.path.string()}, {"step", listed.step}, {"problem", listed.text}});
      if (!options.json) out << fmt::format("{:>10}  {}: {}\n", listed.step, name_of(listed.problem), listed.text);
      continue;
    }
    const Checkpoint checkpoint(listed.path);
    rows.push_back({{"path", listed.path.string()},
                    {"step", listed.step},
                    {"tensors", checkpoint.tensors().size()},
                    {"bytes", checkpoint.bytes()}});
    if (!options.json) {
      out << fmt::format("{:>10}  {:>8}  {:>12}  {}\n", listed.step, checkpoint.tensors().size(), checkpoint.bytes(),
                         listed.path.string());
    }
  }
  if (options.json) out << rows.dump(2) << '\n';
  print_notes(notes, err);
}

void verify_command(const VerifyOptions& options, std::ostream& out, std::ostream& err) {
  std::vector<std::string> notes;
  const fs::path path = resolve(options.path, &notes);
  print_notes(notes, err);
  const Verified result = verify(path);
  const std::string digest = options.digest ? state_digest(Checkpoint(path)).hex() : "";
  if (options.json) {
    Json json{
        {"path", path.string()}, {"tensors", result.tensors}, {"bytes", result.bytes}, {"seconds", result.seconds}};
    if (options.digest) json["digest"] = digest;
    out << json.dump(2) << '\n';
    return;
  }
  out << fmt::format("{}: {} tensors, {} bytes, every block equals its hash ({:.2f} s, {:.0f} MiB/s)\n", path.string(),
                     result.tensors, result.bytes, result.seconds,
                     static_cast<double>(result.bytes) / (1 << 20) / result.seconds);
  if (options.digest) out << "digest " << digest << '\n';
}

void export_command(const ExportOptions& options, std::ostream& out, std::ostream& err) {
  if (options.max_shard_bytes < 1)
    throw UsageError("the largest size of a shard must be positive, is {}", options.max_shard_bytes);
  std::vector<std::string> notes;
  const Checkpoint checkpoint(resolve(options.source, &notes));
  print_notes(notes, err);
  const arch::Architecture arch = architecture_of(checkpoint);
  check_weights(checkpoint, arch);
  HfExport hf{.dtype = std::nullopt,
              .max_shard_bytes = options.max_shard_bytes,
              .tokenizer = std::nullopt,
              .tokens = tokens_of(checkpoint)};
  if (!options.dtype.empty()) hf.dtype = dtype_from_name(options.dtype);
  if (hf.dtype && !is_floating(*hf.dtype))
    throw UsageError("weights cannot be exported as {}; known: fp32, bf16, fp16, fp64", options.dtype);
  if (options.tokenizer) {
    hf.tokenizer = read_file(*options.tokenizer, 1 << 30);
  } else if (checkpoint.has_attachment("tokenizer.json")) {
    hf.tokenizer = checkpoint.attachment("tokenizer.json");
  } else {
    err << "no tokenizer.json in the checkpoint; the directory will hold none\n";
  }
  export_hf(arch, source_of(checkpoint), options.destination, hf);
  const std::int64_t parameters = arch::num_parameters(arch);
  if (options.json) {
    out << Json{{"checkpoint", checkpoint.path().string()},
                {"directory", options.destination.string()},
                {"parameters", parameters}}
               .dump(2)
        << '\n';
  } else {
    out << fmt::format("{}: {} parameters of {} written to {}\n", checkpoint.path().string(), parameters, arch.name,
                       options.destination.string());
  }
}

void import_command(const ImportOptions& options, std::ostream& out, std::ostream& err) {
  const HfModel model(options.source);
  for (const std::string& key : model.config().ignored) err << fmt::format("config.json: '{}' is not used\n", key);
  refuse_to_write_over(options.destination);
  store::LeaseOptions import;
  import.advice = "import into another directory";
  import.waiting = [&](const std::string& text) { err << text << std::endl;
};
const store::Lease lease(options.destination, import);  // a run may be about to save there, or another import
refuse_to_write_over(options.destination);
std::vector<Span> spans;
for (const arch::Parameter& p : arch::parameters(model.arch())) {
  spans.push_back({p.name, model.dtype(p.name), p.shape, whole_box(p.shape), nullptr,
                   [&model, name = p.name](std::int64_t offset, std::int64_t count, void* to) {
                     model.read(name, offset, count, to);
                   }});
}
SaveOptions save_options;
save_options.directory = options.destination;
save_options.token = lease.token();
save_options.still_owner = [&] { lease.require(); };
save_options.state = {{"step", 0},
                      {"arch", arch::to_json(model.arch())},
                      {"special_tokens", to_json(model.config().tokens)},
                      {"imported", true}};
if (const auto tokenizer = model.tokenizer())
  save_options.attachments["tokenizer.json"] = read_file(*tokenizer, 1 << 30);
const fs::path path = save(spans, save_options);
const std::int64_t parameters = arch::num_parameters(model.arch());
if (options.json) {
  out << Json{{"checkpoint", path.string()}, {"parameters", parameters}}.dump(2) << '\n';
} else {
  out << fmt::format("{}: {} parameters written to {}\n", options.source.string(), parameters, path.string());
}
}  // namespace molen::checkpoint

}  // namespace molen::checkpoint
