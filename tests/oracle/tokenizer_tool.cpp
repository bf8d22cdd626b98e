// `molen tokenizer` alone, for tokenizer tests and benchmarks before or without the whole program:
//   tokenizer_tool encode|decode --tokenizer FILE [--jsonl] [--allow-special] [--template] [--skip-special]
//                  [--threads N]
//   tokenizer_tool train --output FILE [--vocab N] [--shape gpt2|llama3] [--bos TOKEN] [--special TOKEN]...
//                  [--min N] INPUT...
//   tokenizer_tool bench --tokenizer FILE [--jsonl] < TEXT
//                  MB/s of one thread, one line for each repetition
#include <chrono>
#include <cstring>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "data/tokenizer/commands.h"

namespace {

using namespace molen;
using namespace molen::data;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void bench(const EncodeCommand& command) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<std::string_view> documents;  // separated by form feeds
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\f', at), text.size());
    documents.push_back(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  for (int repeat = 0; repeat < 5; ++repeat) {
    const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);  // each time with an empty cache
    std::vector<TokenId> ids;
    std::size_t tokens = 0;
    const double start = seconds();
    for (const std::string_view document : documents) {
      ids.clear();
      tokenizer.encode_to(document, {command.allow_special, command.add_template}, ids);
      tokens += ids.size();
    }
    std::printf("%.3f %zu\n", static_cast<double>(text.size()) / 1e6 / (seconds() - start), tokens);
  }
}

int run(int argc, char** argv) {
  if (argc < 2) throw UsageError("encode, decode, train or bench");
  const std::string verb = argv[1];
  EncodeCommand encode;
  DecodeCommand decode;
  TrainCommand train;
  bool default_specials = true;
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw UsageError("{} needs a value", flag);
      return argv[++i];
    };
    if (flag == "--tokenizer")
      encode.tokenizer = decode.tokenizer = value();
    else if (flag == "--jsonl")
      encode.jsonl = decode.jsonl = train.jsonl = true;
    else if (flag == "--allow-special")
      encode.allow_special = true;
    else if (flag == "--template")
      encode.add_template = true;
    else if (flag == "--skip-special")
      decode.skip_special = true;
    else if (flag == "--threads")
      encode.threads = train.options.threads = std::stoi(value());
    else if (flag == "--output")
      train.output = value();
    else if (flag == "--vocab")
      train.options.vocabulary = static_cast<std::uint32_t>(std::stoul(value()));
    else if (flag == "--shape")
      train.options.shape = value();
    else if (flag == "--min")
      train.options.min_frequency = std::stoul(value());
    else if (flag == "--bos")
      train.options.bos = value();
    else if (flag == "--special") {
      if (default_specials) train.options.special_tokens.clear();
      default_specials = false;
      train.options.special_tokens.push_back(value());
    } else if (flag.starts_with("--"))
      throw UsageError("unknown flag {}", flag);
    else
      train.inputs.push_back(flag);
  }
  if (verb == "encode")
    encode_command(encode, std::cin, std::cout);
  else if (verb == "decode")
    decode_command(decode, std::cin, std::cout);
  else if (verb == "train")
    train_command(train, std::cin, std::cerr);
  else if (verb == "bench")
    bench(encode);
  else
    throw UsageError("unknown verb {}", verb);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
