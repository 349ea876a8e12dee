#include "studies/failure_log.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <map>
#include <tuple>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"

namespace tencache {
namespace {

using Form = FailureForm;
using Platform = FailurePlatform;
using Software = FailureSoftware;

constexpr std::size_t longest_message = 1600;  // from its first word to its last figure
constexpr std::size_t traceback_before = 20'000;
constexpr std::size_t words_shown = 160;
constexpr std::size_t most_failures = 10'000;

// ---- Figures --------------------------------------------------------------------------------------------------------

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// All units are powers of 1024: MPS wrote KB, MB and GB for them.
std::optional<double> unit_of(std::string_view unit) {
  for (const auto& [name, power] : {std::pair("bytes", 0),
                                    {"byte", 0},
                                    {"b", 0},
                                    {"kib", 1},
                                    {"mib", 2},
                                    {"gib", 3},
                                    {"tib", 4},
                                    {"kb", 1},
                                    {"mb", 2},
                                    {"gb", 3},
                                    {"tb", 4},
                                    {"k", 1},
                                    {"m", 2},
                                    {"g", 3}}) {
    if (unit == name) return std::pow(1024.0, power);
  }
  return std::nullopt;
}

std::optional<PrintedBytes> printed(std::string_view number, std::string_view unit) {
  const std::optional<double> value = parse_number(number), factor = unit_of(unit);
  if (!value || !factor || *value < 0 || *value * *factor > 0x1p60) return std::nullopt;
  const std::size_t point = number.find('.');
  const auto decimals = point == number.npos ? 0 : static_cast<int>(number.size() - point - 1);
  const double rounding = *factor == 1 ? 0 : *factor * std::pow(10.0, -decimals) / 2;
  return PrintedBytes{static_cast<Bytes>(std::llround(*value * *factor)), static_cast<Bytes>(std::llround(rounding))};
}

// What stands at a place: "12.50 MiB", "137438953472 bytes". Texts are in small letters.
std::optional<PrintedBytes> figure_at(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && end < 32 && (is_digit(text[end]) || text[end] == '.')) ++end;
  const std::string_view number = text.substr(0, end);
  if (end < text.size() && text[end] == ' ') ++end;
  std::size_t letters = end;
  while (letters < text.size() && letters < end + 6 && std::islower(static_cast<unsigned char>(text[letters])) != 0) {
    ++letters;
  }
  return printed(number, text.substr(end, letters - end));
}

// The figure that ends where the words begin: "9.28 gib" of "9.28 gib free;".
std::optional<PrintedBytes> figure_before(std::string_view text, std::string_view words) {
  for (std::size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && std::islower(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
    if (begin > 0 && text[begin - 1] == ' ') --begin;
    while (begin > 0 && at - begin < 32 && (is_digit(text[begin - 1]) || text[begin - 1] == '.')) --begin;
    if (const auto figure = figure_at(text.substr(begin, at - begin))) return figure;
  }
  return std::nullopt;
}

std::optional<PrintedBytes> figure_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  return at == text.npos ? std::nullopt : figure_at(text.substr(at + words.size()));
}

std::optional<PrintedBytes> first_of(std::initializer_list<std::optional<PrintedBytes>> figures) {
  for (const auto& figure : figures) {
    if (figure) return figure;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> whole_at(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && end < 19 && is_digit(text[end])) ++end;
  return parse_number<std::uint64_t>(text.substr(0, end));
}

std::optional<std::uint64_t> whole_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  return at == text.npos ? std::nullopt : whole_at(text.substr(at + words.size()));
}

// ---- Lines ----------------------------------------------------------------------------------------------------------

std::string lowered(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Without colours.
std::string plain_line(std::string_view line) {
  std::string plain;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (is_digit(line[i]) || line[i] == ';')) ++i;
      continue;
    }
    plain += line[i];
  }
  return plain;
}

// Takes off what a launcher puts before each line, and returns it: "[rank3]:", "[default3]:", "[1,3]<stderr>:",
// "(Worker_TP1 pid=77)", "3: ".
std::string take_rank(std::string_view& line) {
  const auto number_of = [](std::string_view label) {
    std::size_t begin = label.size();
    while (begin > 0 && is_digit(label[begin - 1])) --begin;
    return std::string(label.substr(begin));
  };
  std::string_view rest = line;
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  if (rest.starts_with("[")) {
    const std::size_t end = rest.find(']');
    if (end == rest.npos || end > 24) return "";
    const std::string_view label = rest.substr(1, end - 1);
    const std::string number = number_of(label);
    std::string_view before = label.substr(0, label.size() - number.size());
    const bool mpi = before.ends_with(",") && rest.substr(end + 1).starts_with("<std");
    const bool plain = before.empty() && rest.substr(end + 1).starts_with(":");
    if (number.empty() || !(before == "rank" || before == "default" || mpi || plain)) return "";
    rest.remove_prefix(end + 1);
    if (mpi) rest.remove_prefix(std::min(rest.size(), rest.find('>') == rest.npos ? 0 : rest.find('>') + 1));
    if (rest.starts_with(":")) rest.remove_prefix(1);
    line = rest;
    return "rank " + number;
  }
  if (rest.starts_with("(")) {
    const std::size_t end = rest.find(')'), pid = rest.find("pid=");
    if (end == rest.npos || pid == rest.npos || pid > end || end > 80) return "";
    std::string label(rest.substr(1, end - 1));
    line = rest.substr(end + 1);
    return label;
  }
  std::size_t digits = 0;
  while (digits < rest.size() && digits < 4 && is_digit(rest[digits])) ++digits;
  if (digits == 0 || !rest.substr(digits).starts_with(": ")) return "";
  line = rest.substr(digits + 2);
  return "rank " + std::string(rest.substr(0, digits));
}

// Without the frames that terminals draw around a line.
std::string_view unframed(std::string_view line) {
  const std::string_view frames[] = {"\xe2\x94\x82", "\xe2\x94\x83", "\xe2\x95\x91", "|", " ", "\t", "\r"};
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view frame : frames) {
      if (line.starts_with(frame)) line.remove_prefix(frame.size()), again = true;
      if (line.ends_with(frame)) line.remove_suffix(frame.size()), again = true;
    }
  }
  return line;
}

// Where launchers say that a job is over: torchrun's closing rule (what it says of exit codes stands above it) or its
// words that it starts the workers again, DeepSpeed's last line.
class JobEnds {
 public:
  void see(std::string_view line, std::uint64_t number) {
    constexpr std::size_t shortest_rule = 20;
    const bool rule = line.size() >= shortest_rule && line.find_first_not_of('=') == line.npos;
    if (line.find("elastic.multiprocessing.errors.ChildFailedError") != line.npos) rules_ = 2;
    const bool closed = rule && rules_ > 0 && --rules_ == 0;
    if (closed || line.find("will restart worker group") != line.npos ||
        line.find("exits with return code") != line.npos) {
      ends_.push_back(number);
    }
  }
  std::uint64_t before(std::uint64_t line) const {
    return static_cast<std::uint64_t>(std::ranges::lower_bound(ends_, line) - ends_.begin());
  }
  std::uint64_t count() const { return ends_.size(); }

 private:
  std::vector<std::uint64_t> ends_;
  int rules_ = 0;  // of the table that are still to come
};

// The lines of one rank, with spaces between them.
struct Stream {
  std::string text, small;                                    // as printed; in small letters
  std::vector<std::pair<std::size_t, std::uint64_t>> begins;  // of lines: place, number

  void add(std::string_view line, std::uint64_t number) {
    begins.emplace_back(text.size(), number);
    for (const char c : line) {
      const bool space = c == ' ' || c == '\t';
      if (!space || (!text.empty() && text.back() != ' ')) text += space ? ' ' : c;
    }
    text += ' ';
  }
  std::uint64_t line_of(std::size_t place) const {
    const auto after = std::ranges::upper_bound(begins, place, {}, [](const auto& one) { return one.first; });
    return after == begins.begin() ? 0 : std::prev(after)->second;
  }
};

// "|    0   N/A  N/A   1234   C   python   20480MiB |" of nvidia-smi.
std::optional<std::pair<std::uint64_t, OtherProcess>> nvidia_smi_row(const std::string& small) {
  const std::string_view row = unframed(small);
  if (!row.ends_with("mib") || row.empty() || !is_digit(row.front())) return std::nullopt;
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < row.size() && words.size() < 32;) {
    const std::size_t end = std::min(row.find(' ', at), row.size());
    if (end > at) words.push_back(row.substr(at, end - at));
    at = end + 1;
  }
  const auto kind = std::ranges::find_if(words, [](std::string_view w) { return w == "c" || w == "g" || w == "c+g"; });
  if (words.size() < 5 || kind == words.end() || kind == words.begin()) return std::nullopt;
  const auto gpu = parse_number<std::uint64_t>(words.front()), id = parse_number<std::uint64_t>(*std::prev(kind));
  const auto bytes = figure_at(words.back());
  if (!gpu || !id || !bytes) return std::nullopt;
  return std::pair{*gpu, OtherProcess{*id, bytes->bytes}};
}

// ---- What is looked for ---------------------------------------------------------------------------------------------

struct Words {
  std::string_view words;  // in small letters
  Form form;
  Platform platform;
  Software software;
};
constexpr Words known_words[] = {
    {" out of memory. tried to allocate", Form::allocator, Platform::other, Software::pytorch},
    {"would exceed allowed memory. (out of memory)", Form::allocator, Platform::cuda, Software::pytorch},
    {" backend out of memory (", Form::allocator, Platform::mps, Software::pytorch},
    {"cuda error: out of memory", Form::bare, Platform::cuda, Software::pytorch},
    {"cuda runtime error (2)", Form::bare, Platform::cuda, Software::pytorch},
    {"cublas_status_alloc_failed", Form::bare, Platform::cuda, Software::pytorch},
    {"cudnn_status_alloc_failed", Form::bare, Platform::cuda, Software::pytorch},
    {"cuda failure 'out of memory'", Form::bare, Platform::cuda, Software::pytorch},
    {"cuda failure 2 'out of memory'", Form::bare, Platform::cuda, Software::pytorch},
    {"hip error: out of memory", Form::bare, Platform::rocm, Software::pytorch},
    {"hiperroroutofmemory", Form::bare, Platform::rocm, Software::pytorch},
    {"rocblas_status_memory_error", Form::bare, Platform::rocm, Software::pytorch},
    {"error_out_of_device_memory", Form::bare, Platform::xpu, Software::pytorch},
    {"ur_result_error_out_of_resources", Form::bare, Platform::xpu, Software::pytorch},
    {"pi_error_out_of_resources", Form::bare, Platform::xpu, Software::pytorch},
    {"kiogpucommandbuffercallbackerroroutofmemory", Form::bare, Platform::mps, Software::pytorch},
    {"error out of memory at line", Form::bare, Platform::cuda, Software::bitsandbytes},
    {"can not allocate memory block with size larger than 4gb", Form::one_buffer, Platform::xpu, Software::pytorch},
    {"invalid buffer size:", Form::one_buffer, Platform::mps, Software::pytorch},
    {"some modules are dispatched on the cpu or the disk", Form::too_large, Platform::cuda, Software::transformers},
    // llama.cpp
    {"cuda error 2 at ", Form::bare, Platform::cuda, Software::llama_cpp},
    {"cudamalloc failed: out of memory", Form::bare, Platform::cuda, Software::llama_cpp},
    {"hipmalloc failed: out of memory", Form::bare, Platform::rocm, Software::llama_cpp},
    {"ggml_vulkan: device memory allocation of size", Form::bare, Platform::vulkan, Software::llama_cpp},
    {"vk_error_out_of_device_memory", Form::bare, Platform::vulkan, Software::llama_cpp},
    {"erroroutofdevicememory", Form::bare, Platform::vulkan, Software::llama_cpp},
    {"requested buffer size exceeds device", Form::one_buffer, Platform::vulkan, Software::llama_cpp},
    {"unable to allocate cuda", Form::bare, Platform::cuda, Software::llama_cpp},
    {"failed to allocate cuda", Form::bare, Platform::cuda, Software::llama_cpp},
    {"failed to allocate rocm", Form::bare, Platform::rocm, Software::llama_cpp},
    {"failed to allocate vulkan", Form::bare, Platform::vulkan, Software::llama_cpp},
    {"failed to allocate sycl", Form::bare, Platform::xpu, Software::llama_cpp},
    {"failed to allocate metal", Form::bare, Platform::mps, Software::llama_cpp},
    {"ggml_metal_buffer_type_alloc_buffer: error: failed to allocate", Form::bare, Platform::mps, Software::llama_cpp},
    {"failed to allocate buffer for kv cache", Form::bare, Platform::cuda, Software::llama_cpp},
    {"failed to allocate compute", Form::bare, Platform::cuda, Software::llama_cpp},
    {"alloc_buffer: failed to allocate buffer of size", Form::host, Platform::cpu, Software::llama_cpp},
    {"failed to allocate cpu buffer", Form::host, Platform::cpu, Software::llama_cpp},
    {"failed to mlock", Form::host, Platform::cpu, Software::llama_cpp},
    {"model requires more system memory", Form::host, Platform::cpu, Software::ollama},
    // vLLM, SGLang
    {"no available memory for the cache blocks", Form::share, Platform::cuda, Software::vllm},
    {"is larger than the maximum number of tokens that can be stored in kv cache", Form::cache, Platform::cuda,
     Software::vllm},
    {"kv cache is needed, which is larger than the available kv cache memory", Form::cache, Platform::cuda,
     Software::vllm},
    {"on startup is less than desired gpu memory utilization", Form::start, Platform::cuda, Software::vllm},
    {"cuda out of memory occurred when warming up", Form::share, Platform::cuda, Software::vllm},
    {"increasing --mem-fraction-static", Form::share, Platform::cuda, Software::sglang},
    {"increase --mem-fraction-static", Form::share, Platform::cuda, Software::sglang},
    // CPU memory
    {"defaultcpuallocator:", Form::host, Platform::cpu, Software::pytorch},
    {"alloc_cpu.cpp", Form::host, Platform::cpu, Software::pytorch},
    {"arraymemoryerror", Form::host, Platform::cpu, Software::numpy},
    {"for an array with shape", Form::host, Platform::cpu, Software::numpy},
    {"std::bad_alloc", Form::host, Platform::cpu, Software::pytorch},
    {"memoryerror", Form::host, Platform::cpu, Software::pytorch},
    {"errno 12] cannot allocate memory", Form::host, Platform::cpu, Software::system},
    {"out of memory: killed process", Form::killed, Platform::cpu, Software::system},
    {"out of memory: kill process", Form::killed, Platform::cpu, Software::system},
    {"memory cgroup out of memory", Form::killed, Platform::cpu, Software::system},
    {"oomkilled", Form::killed, Platform::cpu, Software::system},
    {"oom-kill", Form::killed, Platform::cpu, Software::system},
    {"oom_kill event", Form::killed, Platform::cpu, Software::system},
    {"signal 9 (sigkill)", Form::killed, Platform::cpu, Software::system},
    {"exitcode : -9", Form::killed, Platform::cpu, Software::system},
    {"exitcode: -9", Form::killed, Platform::cpu, Software::system},
    {"exits with return code = -9", Form::killed, Platform::cpu, Software::system},
    {"exit code 137", Form::killed, Platform::cpu, Software::system},
    {"killed by signal: killed", Form::killed, Platform::cpu, Software::system},
    {"unexpected bus error encountered in worker", Form::shared_memory, Platform::cpu, Software::pytorch},
    {"insufficient shared memory", Form::shared_memory, Platform::cpu, Software::pytorch},
};

// Programs whose words are known, and are not explained here.
struct Stranger {
  std::string_view words, name, hint;
};
constexpr Stranger strangers[] = {
    {"oom when allocating tensor with shape", "TensorFlow", "its allocator's own report stands above the message"},
    {"resourceexhaustederror", "TensorFlow", "its allocator's own report stands above the message"},
    {"cuda_error_out_of_memory", "TensorFlow or JAX", "XLA takes most of a GPU at its start: another one on it fails"},
    {"resource_exhausted:", "JAX", "XLA_PYTHON_CLIENT_PREALLOCATE=false shows what is really needed"},
    {"out of memory error on gpu", "PaddlePaddle", "FLAGS_fraction_of_gpu_memory_to_use says what it takes"},
    {"bfcarena::allocaterawinternal", "ONNX Runtime", "gpu_mem_limit and arena_extend_strategy are its settings"},
    {"cupy.cuda.memory.outofmemoryerror", "CuPy", "its pools are apart from PyTorch's"},
    {"cudamalloc retry failed", "MXNet", "MXNET_GPU_MEM_POOL_RESERVE is its setting"},
    {"[metal::malloc]", "MLX", "mx.set_memory_limit is its setting"},
    {"out of resource: shared memory", "Triton's compiler",
     "that is the multiprocessor's shared memory, not the GPU's: smaller blocks or num_stages"},
    {"java.lang.outofmemoryerror", "Java", "-Xmx is its setting"},
    {"no space left on device", "the file system", "that is a full disk or /dev/shm, not memory of a GPU"},
};

struct Found {
  std::size_t place = 0;
  const Words* words = nullptr;
};

std::vector<Found> find_words(const std::string& small) {
  std::vector<Found> found;
  for (const Words& words : known_words) {
    for (std::size_t at = small.find(words.words); at != small.npos; at = small.find(words.words, at + 1)) {
      // "MemoryError" is Python's, "OutOfMemoryError" another one's.
      const bool is_word = std::islower(static_cast<unsigned char>(words.words.front())) != 0;
      if (is_word && at > 0 && std::isalnum(static_cast<unsigned char>(small[at - 1])) != 0) continue;
      if (found.size() < most_failures) found.push_back({at, &words});
    }
  }
  // At one place the allocator's message stands first: it has the figures.
  std::ranges::stable_sort(found, {}, &Found::place);
  return found;
}

// ---- One message ----------------------------------------------------------------------------------------------------

Platform platform_before(std::string_view small, std::size_t place) {
  std::size_t begin = place;
  while (begin > 0 && place - begin < 12 && std::isalnum(static_cast<unsigned char>(small[begin - 1])) != 0) --begin;
  const std::string_view word = small.substr(begin, place - begin);
  for (const auto& [name, platform] : {std::pair("cuda", Platform::cuda),
                                       {"hip", Platform::rocm},
                                       {"xpu", Platform::xpu},
                                       {"npu", Platform::npu},
                                       {"mps", Platform::mps}}) {
    if (word == name) return platform;
  }
  return Platform::other;
}

PrintedBytes difference(const PrintedBytes& all, const PrintedBytes& part) {
  return {all.bytes - std::min(all.bytes, part.bytes), all.rounding + part.rounding};
}

void read_allocator(Failure& failure, std::string_view s) {
  failure.tried = figure_after(s, "tried to allocate ");
  if (!failure.tried) {  // of the backend cudaMallocAsync, whose pool the driver has
    failure.tried = figure_after(s, "requested : ");
    failure.allocated = figure_after(s, "currently allocated : ");
    failure.total = figure_after(s, "device limit : ");
    failure.free = figure_after(s, "free (according to cuda): ");
    if (failure.allocated) failure.unallocated = PrintedBytes{};
    return;
  }
  failure.total = first_of({figure_before(s, " total capacity"), figure_after(s, "total capacity of "),
                            figure_after(s, "total capacty of ")});
  failure.free = first_of({figure_before(s, " is free"), figure_before(s, " free;"), figure_before(s, " free)")});
  failure.allowed = first_of({figure_before(s, " allowed;"), figure_after(s, "max allowed: ")});
  failure.process = figure_after(s, "this process has ");
  failure.allocated = first_of({figure_before(s, " already allocated"), figure_before(s, " is allocated by pytorch"),
                                figure_after(s, "mps allocated: ")});
  if (!failure.allocated) failure.allocated = figure_before(s, " allocated by pytorch");
  // "19.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools": a part of it.
  failure.private_pools = figure_before(s, " allocated in private pools");
  failure.other = figure_after(s, "other allocations: ");
  failure.unallocated = figure_before(s, " is reserved by pytorch but unallocated");
  const auto reserved = figure_before(s, " reserved in total by pytorch");
  if (reserved && failure.allocated) failure.unallocated = difference(*reserved, *failure.allocated);
  // Until 1.3: what PyTorch holds beyond what is allocated.
  if (!failure.unallocated) failure.unallocated = figure_before(s, " cached");
  for (const std::string_view words : {"(gpu ", "(npu ", ". gpu ", ". npu "}) {
    if (!failure.gpu) failure.gpu = whole_after(s, words);
  }
  for (std::size_t at = s.find("process "); at != s.npos; at = s.find("process ", at + 1)) {
    const std::string_view rest = s.substr(at + 8);
    const auto id = whole_at(rest);
    const std::size_t has = rest.find(" has ");
    if (!id || has == rest.npos || has > 20) continue;
    if (const auto bytes = figure_at(rest.substr(has + 5))) failure.processes.push_back({*id, bytes->bytes});
  }
  for (const char* variable : {"pytorch_alloc_conf", "pytorch_hip_alloc_conf", "pytorch_npu_alloc_conf"}) {
    if (failure.variable.empty() && s.find(variable) != s.npos) {
      for (const char* c = variable; *c != '\0'; ++c)
        failure.variable += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
    }
  }
}

// Of what came before: the device's free memory, buffers that were allocated, layers.
void read_llama(Failure& failure, std::string_view before, std::string_view s) {
  failure.tried = first_of({figure_after(s, "allocating "), figure_after(s, "memory allocation of size "),
                            figure_after(s, "failed to allocate buffer, size = ")});
  if (const auto bytes = whole_after(s, "buffer of size "); bytes && !failure.tried && *bytes < (1ull << 60)) {
    failure.tried = PrintedBytes{*bytes, 0};
  }
  if (const auto bytes = whole_after(s, "memory allocation of size "); bytes && !failure.tried) {
    if (*bytes < (1ull << 60)) failure.tried = PrintedBytes{*bytes, 0};
  }
  failure.free = figure_before(before, " free");
  Bytes sum = 0;
  for (std::size_t at = before.find("buffer size ="); at != before.npos; at = before.find("buffer size =", at + 1)) {
    std::string_view rest = before.substr(at + 13);
    while (rest.starts_with(" ")) rest.remove_prefix(1);
    const std::string_view name = before.substr(at > 40 ? at - 40 : 0, std::min<std::size_t>(at, 40));
    const bool on_gpu = name.find("cuda") != name.npos || name.find("rocm") != name.npos ||
                        name.find("vulkan") != name.npos || name.find("sycl") != name.npos;
    if (const auto bytes = figure_at(rest); bytes && on_gpu && name.find("host") == name.npos) sum += bytes->bytes;
  }
  if (sum > 0) failure.allocated = PrintedBytes{sum, 0};
  const std::size_t at = before.rfind("offloaded ");
  if (at == before.npos) return;
  const std::string_view rest = before.substr(at + 10);
  failure.layers.wanted = whole_at(rest);
  failure.layers.all = whole_after(rest.substr(0, 24), "/");
}

void read_others(Failure& failure, std::string_view s) {
  failure.tried = first_of({figure_after(s, "you tried to allocate "), figure_after(s, "unable to allocate "),
                            figure_after(s, "tried to allocate "), figure_after(s, "invalid buffer size: "),
                            figure_after(s, "more system memory ("), figure_before(s, " kv cache is needed")});
  failure.free = first_of({figure_after(s, "than is available ("), figure_after(s, "kv cache memory (")});
  failure.longest = whole_after(s, "estimated maximum model length is ");
  if (!failure.longest) failure.longest = whole_after(s, "stored in kv cache (");
  // "Free memory on device (3.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.3 GiB)"
  const std::size_t device = s.find("free memory on device");
  if (device == s.npos) return;
  const std::string_view rest = s.substr(device);
  const std::size_t open = rest.find('('), slash = rest.find('/');
  if (open == rest.npos || slash == rest.npos || slash < open) return;
  failure.total = figure_at(rest.substr(slash + 1));
  if (failure.total) failure.free = printed(rest.substr(open + 1, slash - open - 1), "gib");
  const std::size_t wanted = rest.find("utilization (");
  if (wanted == rest.npos) return;
  const std::size_t comma = rest.find(", ", wanted);
  if (comma != rest.npos) failure.tried = figure_at(rest.substr(comma + 2));
}

Software software_of(std::string_view before, Software said) {
  if (said != Software::pytorch) return said;
  const auto has = [&](std::string_view words) { return before.find(words) != before.npos; };
  if (has("/vllm/") || has("\\vllm\\")) return Software::vllm;
  if (has("/sglang/")) return Software::sglang;
  if (has("/deepspeed/") || has("\\deepspeed\\") || has("[deepspeed]")) return Software::deepspeed;
  if (has("/bitsandbytes/") || has("\\bitsandbytes\\")) return Software::bitsandbytes;
  return said;
}

bool is_same(const Failure& a, const Failure& b) {
  const auto bytes = [](const std::optional<PrintedBytes>& one) { return one ? one->bytes : unlimited; };
  return std::tuple(a.form, a.platform, a.rank, a.place.job, a.gpu, bytes(a.tried), bytes(a.free),
                    bytes(a.allocated)) ==
         std::tuple(b.form, b.platform, b.rank, b.place.job, b.gpu, bytes(b.tried), bytes(b.free), bytes(b.allocated));
}

// A later line about the same refusal, with fewer figures or none: "unable to allocate CUDA0 buffer" after "cudaMalloc
// failed", "exitcode: -9" after "DefaultCPUAllocator".
bool belongs_to(const Failure& later, const Failure& earlier) {
  if (later.rank != earlier.rank || later.place.job != earlier.place.job) return false;
  if (later.form == Form::allocator || later.form == Form::cache) return false;
  const bool host = earlier.platform == Platform::cpu, later_host = later.platform == Platform::cpu;
  return host == later_host && (!later.tried || !earlier.tried || later.software == earlier.software);
}

void read_stream(const std::string& rank, const Stream& stream, const JobEnds& ends, std::vector<Failure>& failures) {
  const std::string_view small = stream.small;
  const std::vector<Found> all = find_words(stream.small);
  std::vector<Failure> mine;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [place, words] = all[i];
    Failure failure;
    failure.form = words->form;
    failure.platform = words->platform;
    failure.rank = rank;
    failure.place.line = stream.line_of(place);
    failure.place.job = ends.before(failure.place.line);
    // The system's words for a process that it ended may follow the launcher's.
    const bool after_all = rank.empty() && words->form != Form::allocator && failure.place.job == ends.count();
    if (after_all && failure.place.job > 0) --failure.place.job;
    std::size_t end = std::min(small.size(), place + longest_message);
    for (std::size_t next = i + 1; next < all.size() && words->form == Form::allocator; ++next) {
      if (all[next].words->form != Form::allocator) continue;
      end = std::min(end, all[next].place);
      break;
    }
    const std::size_t begin = place > 160 ? place - 160 : 0;
    const std::string_view message = small.substr(place, end - place);
    const std::string_view around = small.substr(begin, end - begin);
    const std::string_view before =
        small.substr(place > traceback_before ? place - traceback_before : 0, std::min(place, traceback_before));
    failure.software = software_of(before, words->software);
    if (words->form == Form::bare && around.find("ggml") != around.npos) failure.software = Software::llama_cpp;
    if (words->form == Form::allocator) {
      if (words->platform == Platform::other) failure.platform = platform_before(small, place);
      read_allocator(failure, message);
      if (!failure.tried) continue;
    } else if (failure.software == Software::llama_cpp) {
      read_llama(failure, before, around);
    } else {
      read_others(failure, around);
    }
    std::size_t from = place;
    while (from > 0 && place - from < 60 && stream.text[from - 1] != ' ') --from;
    if (words->form == Form::allocator && from > 5) from = stream.text.rfind(' ', from - 2) + 1;
    failure.words = cut_line(stream.text.substr(from, words_shown * 2), words_shown);
    if (!mine.empty() && is_same(failure, mine.back())) {
      ++mine.back().place.times;
    } else if (!mine.empty() && belongs_to(failure, mine.back())) {
      if (!mine.back().tried) mine.back().tried = failure.tried;
    } else {
      mine.push_back(std::move(failure));
    }
  }
  std::ranges::move(mine, std::back_inserter(failures));
}

[[noreturn]] void refuse(const std::map<std::string, Stream>& streams, const std::string& name) {
  for (const Stranger& stranger : strangers) {
    for (const auto& [rank, stream] : streams) {
      const std::size_t at = stream.small.find(stranger.words);
      if (at == std::string::npos) continue;
      throw Error(
          name, stream.line_of(at),
          "is a message of " + std::string(stranger.name) +
              ", which is not explained here; PyTorch's, DeepSpeed's, vLLM's, SGLang's, llama.cpp's, Ollama's and "
              "the system's are. A hint: " +
              std::string(stranger.hint));
    }
  }
  throw Error(name, 0,
              "has no message that memory ran out; paste PyTorch's whole line (\"CUDA out of memory. Tried to allocate "
              "…\"), or name the log that has it");
}

}  // namespace

FailureLog read_failure_log(std::string_view text, const std::string& name) {
  std::map<std::string, Stream> streams;
  std::vector<std::pair<std::uint64_t, OtherProcess>> listed;  // by nvidia-smi: GPU, process
  FailureLog log;
  JobEnds ends;
  std::uint64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string plain = plain_line(text.substr(at, end - at));
    at = end + 1;
    ++number;
    if (plain.size() < 512) {
      if (const auto row = nvidia_smi_row(lowered(plain))) listed.push_back(*row);
    }
    std::string_view line = plain;
    const std::string rank = take_rank(line);
    line = unframed(line);
    if (rank.empty()) ends.see(line, number);
    if (line == "Killed" || line.ends_with(" Killed")) line = "Killed by signal: Killed";
    streams[rank].add(line, number);
  }
  for (auto& [rank, stream] : streams) {
    stream.small = lowered(stream.text);
    read_stream(rank, stream, ends, log.failures);
    log.on_windows = log.on_windows || stream.small.find("\\site-packages\\") != std::string::npos ||
                     stream.small.find("\\lib\\") != std::string::npos;
  }
  if (log.failures.empty()) refuse(streams, name);
  std::ranges::stable_sort(log.failures, {}, [](const Failure& failure) { return failure.place.line; });
  for (Failure& failure : log.failures) {
    if (failure.platform != Platform::cuda || !failure.processes.empty()) continue;
    for (const auto& [gpu, process] : listed) {
      if (gpu == failure.gpu.value_or(0)) failure.processes.push_back(process);
    }
  }
  return log;
}

}  // namespace tencache
