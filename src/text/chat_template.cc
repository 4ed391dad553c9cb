// Chat templates are programs in Jinja. There is no engine here: a template is known by its whole
// text or, where that is long, by the SHA-256 of it, and what it prints is written out below. All
// known ones are ChatML, each message as "<|im_start|>role\ncontent<|im_end|>\n"; they differ in
// the system message that they put in front when the conversation does not start with one, and in
// what they do with thoughts ("<think>...</think>") in an answer.
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/sha256.h"
#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "json/json_node.h"
#include "json/quoted.h"

namespace deepinfer {
namespace {

struct KnownTemplate {
  std::string_view name;
  std::string_view text;                 // empty: known by its SHA-256
  std::string_view default_system = {};  // empty: none is put in front
  std::string_view sha256 = {};          // as sha256sum prints it
  bool thinks = false;                   // keeps the thoughts of the last answer only
};

// Line breaks stand as themselves here; published texts have either these or the two characters \n.
constexpr std::array kKnown = {
    // The instruct models of HuggingFaceTB/SmolLM2.
    KnownTemplate{"smollm2",
                  R"({% for message in messages %})"
                  R"({% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    // Qwen1.5 and Qwen2 instruct models.
    KnownTemplate{"qwen2",
                  R"({% for message in messages %})"
                  R"({% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  "You are a helpful assistant."},
    // The example of the transformers documentation; OpenHermes.
    KnownTemplate{"chatml",
                  R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  ""},
    // The same with a default for add_generation_prompt: Dolphin, Nous-Hermes-2.
    KnownTemplate{"chatml",
                  R"({% if not add_generation_prompt is defined %})"
                  R"({% set add_generation_prompt = false %}{% endif %})"
                  R"({% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})",
                  ""},
    // Qwen3 from 0.6B to 32B: as it was released, and since it takes messages that are no text.
    KnownTemplate{.name = "qwen3",
                  .text = "",
                  .sha256 = "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
                  .thinks = true},
    KnownTemplate{.name = "qwen3",
                  .text = "",
                  .sha256 = "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
                  .thinks = true},
    // Qwen3-4B-Instruct-2507 and its larger relatives.
    KnownTemplate{.name = "qwen3-instruct-2507",
                  .text = "",
                  .sha256 = "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326"},
};

// At the end Jinja ignores two line breaks: the one after a block tag and the last of the file.
// More would be printed, so they make another template.
std::string_view without_end(std::string_view text) {
  for (int i = 0; i < 2 && text.ends_with('\n'); ++i) text.remove_suffix(1);
  return text;
}

std::string sha256(std::string_view text) {
  checkpoint::Sha256 digest;
  digest.add(std::as_bytes(std::span(text)));
  return digest.finish();
}

// The text in the form of kKnown. All line breaks of the texts written out there are inside of
// string literals, where \n means the same.
std::string comparable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text.substr(i, 2) == "\\n";
    out += is_escape ? '\n' : text[i];
    i += is_escape ? 1 : 0;
  }
  return out;
}

void append_message(std::string& out, std::string_view role, std::string_view content) {
  out.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
}

constexpr std::string_view kThinkEnd = "</think>";

std::string_view without_breaks(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of('\n'), text.size());
  return text.substr(begin, text.find_last_not_of('\n') + 1 - begin);
}

/// What an answer says after its last "</think>", without line breaks in front; all of it if it
/// has none.
std::string_view spoken(std::string_view answer) {
  const std::size_t end = answer.rfind(kThinkEnd);
  if (end == std::string_view::npos) return answer;
  answer.remove_prefix(end + kThinkEnd.size());
  answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
  return answer;
}

/// What stands in front of its first "</think>", from the last "<think>" of that on.
std::string_view thoughts(std::string_view answer) {
  constexpr std::string_view kThinkBegin = "<think>";
  const std::size_t end = answer.find(kThinkEnd);
  if (end == std::string_view::npos) return {};
  answer = answer.substr(0, end);
  const std::size_t begin = answer.rfind(kThinkBegin);
  if (begin != std::string_view::npos) answer.remove_prefix(begin + kThinkBegin.size());
  return without_breaks(answer);
}

/// The last question; what a tool says under the name of the user is none. Without a question, the
/// last message.
std::size_t last_question(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool tool =
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !tool) return i;
  }
  return messages.size() - 1;
}

/// Qwen3: answers in front of the last question lose their thoughts, the last message has a place
/// for them even if it has none.
void append_thinking(std::string& out, std::span<const ChatMessage> messages) {
  const std::size_t question = last_question(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role != "assistant") {
      append_message(out, role, content);
      continue;
    }
    const std::string_view thought = thoughts(content);
    std::string_view said = spoken(content);
    if (i <= question || (i + 1 != messages.size() && thought.empty())) {
      append_message(out, role, said);
      continue;
    }
    said.remove_prefix(std::min(said.find_first_not_of('\n'), said.size()));
    append_message(out, role,
                   std::string("<think>\n").append(thought).append("\n</think>\n\n").append(said));
  }
}

void check_role(const std::string& role) {
  if (role == "system" || role == "user" || role == "assistant") return;
  throw Error(ErrorCode::kInvalidArgument,
              "chat message: expected the role \"system\", \"user\" or \"assistant\", found " +
                  json::in_quotes(role));
}

std::string known_names() {
  std::string names;
  for (const std::string_view name : ChatTemplate::known()) {
    names.append(names.empty() ? "" : ", ").append(name);
  }
  return names;
}

// The member is one text, or in older files a list of named ones.
std::string template_of_config(const json::JsonNode& node) {
  if (node.is_null()) node.bad("expected a chat template, found none");
  if (!node.value().is_array()) return node.string();
  for (std::size_t i = 0; i < node.array().size(); ++i) {
    if (node[i]["name"].string() == "default") return node[i]["template"].string();
  }
  node.bad("expected a chat template named \"default\", found none");
}

}  // namespace

ChatTemplate ChatTemplate::from_directory(const std::filesystem::path& directory) {
  const std::filesystem::path jinja = directory / "chat_template.jinja";
  const std::filesystem::path config = directory / "tokenizer_config.json";
  // What cannot be looked at is there, and is refused with the reason when it is read.
  const auto is_there = [](const std::filesystem::path& file) {
    std::error_code ignored;
    return std::filesystem::status(file, ignored).type() != std::filesystem::file_type::not_found;
  };
  const bool has_jinja = is_there(jinja);
  if (!has_jinja && !is_there(config)) {
    throw Error(ErrorCode::kBadInput, directory.string() +
                                          ": expected chat_template.jinja or "
                                          "tokenizer_config.json, found neither");
  }
  const std::filesystem::path& path = has_jinja ? jinja : config;
  std::string source = json::read_file(path);
  if (!has_jinja) {
    const std::string name = path.string();
    const json::Json json = json::parse_json(source, name);
    source = template_of_config(json::JsonNode(json, name)["chat_template"]);
  }
  try {
    return from_text(source);
  } catch (const Error& error) {
    throw Error(error.code(), path.string() + ": " + error.what());
  }
}

ChatTemplate ChatTemplate::from_text(std::string_view text) {
  const std::string_view whole = without_end(text);
  const std::string wanted = comparable(whole);
  const std::string digest = sha256(whole);
  for (std::size_t i = 0; i < kKnown.size(); ++i) {
    const KnownTemplate& known = kKnown[i];
    if (known.sha256.empty() ? known.text == wanted : known.sha256 == digest)
      return ChatTemplate(i);
  }
  throw Error(ErrorCode::kUnsupported, "chat template: expected one of the known texts (" +
                                           known_names() + "), found another of " +
                                           std::to_string(text.size()) + " bytes");
}

ChatTemplate ChatTemplate::from_name(std::string_view name) {
  for (std::size_t i = 0; i < kKnown.size(); ++i) {
    if (kKnown[i].name == name) return ChatTemplate(i);
  }
  throw Error(ErrorCode::kInvalidArgument, "chat template: expected one of " + known_names() +
                                               ", found " + json::in_quotes(name));
}

std::vector<std::string_view> ChatTemplate::known() {
  std::vector<std::string_view> names;
  for (const KnownTemplate& known : kKnown) {
    if (names.empty() || names.back() != known.name) names.push_back(known.name);
  }
  return names;
}

std::string_view ChatTemplate::name() const noexcept { return kKnown[index_].name; }

std::string ChatTemplate::apply(std::span<const ChatMessage> messages) const {
  if (messages.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "chat: expected at least one message, found none");
  }
  for (const ChatMessage& message : messages) check_role(message.role);
  std::string out;
  const std::string_view default_system = kKnown[index_].default_system;
  if (!default_system.empty() && messages.front().role != "system") {
    append_message(out, "system", default_system);
  }
  if (kKnown[index_].thinks) {
    append_thinking(out, messages);
  } else {
    for (const ChatMessage& message : messages) append_message(out, message.role, message.content);
  }
  return out.append("<|im_start|>assistant\n");
}

}  // namespace deepinfer
